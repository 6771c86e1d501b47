// The scheduler's part of preemption: which sequence frees its pages, and when.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "stage/generation/scheduler.h"

namespace lfm2 {

// Makes room in the caches for the next token of the sequence. If no page is left, preempts younger sequences, or the
// sequence itself. False if there is no room yet.
bool Scheduler::make_room_for_next(int32_t slot) {
  Sequence& sequence = at(slot);
  const bool is_victim = sequence.state == State::kVictim,
             fits = pages_for(sequence.num_computed + 1, limits_.caches.page_size) <= std::ssize(sequence.pages);
  while (pages_.available() == 0 && (is_victim || !fits)) {
    const int32_t victim = is_victim ? slot : youngest();
    if (at(victim).in_flight > 0) {
      choose_victim(victim);
      return false;
    }
    preempt(victim);
    if (victim == slot) return false;
  }
  if (is_victim) sequence.state = State::kRunning;
  if (fits) return true;
  sequence.pages.push_back(pages_.allocate());
  next_.added.push_back({slot, sequence.pages.back()});
  return true;
}

// The sequence slot of the youngest sequence; there is at least one.
int32_t Scheduler::youngest() const {
  const auto number = [](const Sequence& one) { return one.state == State::kFree ? -1 : one.number; };
  return static_cast<int32_t>(std::ranges::max_element(sequences_, {}, number) - sequences_.begin());
}

// Frees the sequence slot and the pages of a sequence, which then waits again in its old position. Its tokens are
// computed again, except those still in the prefix cache, with the same bits.
void Scheduler::preempt(int32_t slot) {
  stop_feeding(slot, State::kPreempted);
  Sequence sequence = release(slot);
  sequence.pages.clear();
  sequence.num_computed = 0;
  sequence.accepted = sequence.rejected = 0;
  const auto younger = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Sequence& other) { return other.number > sequence.number; });
  waiting_.insert(younger, std::move(sequence));
  ++counts_.preemptions;
}

// Makes the sequence the victim in place of an earlier one. A sequence that is to leave frees its pages anyway.
void Scheduler::choose_victim(int32_t slot) {
  for (Sequence& other : sequences_)
    if (other.state == State::kVictim) other.state = State::kRunning;
  if (at(slot).runs()) at(slot).state = State::kVictim;
}

}  // namespace lfm2
