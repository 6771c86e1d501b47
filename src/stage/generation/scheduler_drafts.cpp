// The scheduler's part of speculative decoding: which sequences get drafts, and what their verification leaves.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "stage/generation/scheduler.h"

namespace lfm2 {

void SchedulerCounts::add(const SchedulerCounts& more) {
  requests += more.requests;
  prompt_tokens += more.prompt_tokens;
  preemptions += more.preemptions;
  draft_rounds += more.draft_rounds;
  draft_tokens += more.draft_tokens;
  accepted.resize(std::max(accepted.size(), more.accepted.size()));
  for (size_t place = 0; place < more.accepted.size(); ++place) accepted[place] += more.accepted[place];
}

// Whether the next step must wait for tokens in flight, because a sequence of it has drafts in flight or may get some.
bool Scheduler::waits_for_drafts() {
  if (!limits_.runs_ahead() || in_flight_.empty() || !drafting_.drafters) return false;
  if (in_flight_.back().drafts()) return true;
  std::vector<DraftOffer> offers;
  for (const int32_t slot : ready_) {
    const Sequence& one = at(slot);
    const bool due = limits_.asks_for_drafts ? one.draft_success.will_be_due() : one.draft_success.is_due();
    if (one.drafter && one.awaited > 0 && one.drafter->may_propose(one.tokens, one.awaited))
      offers.push_back({one.draft_success.chance(), places_for_drafts(one), due});
  }
  if (offers.empty()) return false;
  const int64_t sequences = std::min(std::ssize(ready_), limits_.max_sequences);
  const std::vector<int64_t> counts = drafting_.lengths.choose(sequences, offers, limits_.draft_rows);
  return std::ranges::any_of(counts, [](int64_t count) { return count > 0; });
}

// The most drafts after the sequence's next token, or `later` tokens after it: the last row of a block draws at most
// the last token of the text.
int64_t Scheduler::places_for_drafts(const Sequence& sequence, int64_t later) const {
  const int64_t places =
      sequence.prompt + sequence.request.max_new - std::ssize(sequence.tokens) - sequence.awaited - 1 - later;
  return std::clamp<int64_t>(places, 0, limits_.caches.max_drafts);
}

// The drafts that may follow the sequence's newest token, unless that has not returned yet.
std::vector<int32_t> Scheduler::propose(Sequence& sequence) {
  const int64_t most = places_for_drafts(sequence);
  if (sequence.num_computed + 1 != std::ssize(sequence.tokens) || most == 0) return {};
  std::vector<int32_t> drafts = sequence.drafter->propose(sequence.tokens, most);
  const auto is_token = [&](int32_t id) { return id >= 0 && id < limits_.vocab; };
  drafts.erase(std::ranges::find_if_not(drafts, is_token), drafts.end());
  drafts.resize(std::min(drafts.size(), static_cast<size_t>(most)));
  if (drafts.empty() && sequence.draft_success.is_due() && !limits_.asks_for_drafts) sequence.draft_success.on_try();
  return drafts;
}

// Adds drafts to the entries of a step, whose sequences are chosen.
void Scheduler::add_drafts() {
  struct Proposal {
    StepEntry& entry;
    std::vector<int32_t> drafts;
  };
  std::vector<Proposal> proposals;
  std::vector<DraftOffer> offers;
  for (StepEntry& entry : next_.entries) {
    Sequence& sequence = at(entry.slot);
    if (!sequence.drafter || streams(sequence)) continue;
    DraftSuccess& success = sequence.draft_success;
    success.on_step();
    std::vector<int32_t> drafts = propose(sequence);
    if (drafts.empty()) continue;
    offers.push_back({success.chance(), std::ssize(drafts), success.is_due()});
    proposals.push_back({entry, std::move(drafts)});
  }
  if (offers.empty()) return;
  const auto sequences = std::ssize(next_.entries);
  const std::vector<int64_t> counts = drafting_.lengths.choose(sequences, offers, limits_.draft_rows);
  for (size_t i = 0; i < counts.size(); ++i) {
    auto& [entry, drafts] = proposals[i];
    if (counts[i] == 0) continue;
    const int64_t count = room_for_drafts(entry.slot, counts[i]);
    at(entry.slot).draft_success.on_try();
    entry.drafts = static_cast<int32_t>(count);
    entry.count += entry.drafts;
    next_.drafts.insert(next_.drafts.end(), drafts.begin(), drafts.begin() + count);
  }
  drafting_.lengths.on_step(sequences + std::ssize(next_.drafts));
}

// Lets a step ask for the drafts of the next one, for the sequences that would get some then.
void Scheduler::ask_for_drafts() {
  std::vector<DraftOffer> offers;
  std::vector<StepEntry*> entries;
  for (StepEntry& entry : next_.entries) {
    const Sequence& one = at(entry.slot);
    const bool draws = one.num_computed + entry.count >= one.num_tokens;
    const int64_t most = places_for_drafts(one, 1);
    if (!one.drafter || !draws || most == 0) continue;
    offers.push_back({one.draft_success.chance(), most, one.draft_success.will_be_due()});
    entries.push_back(&entry);
  }
  const std::vector<int64_t> counts = drafting_.lengths.choose(std::ssize(next_.entries), offers, limits_.draft_rows);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    entries[i]->wants_drafts = true;
    at(entries[i]->slot).drafter->on_asked();
  }
}

// Measures a step that has returned: the time since the one before returned, as the device was at work in between.
void Scheduler::measure(const Flight& flight) {
  if (!drafting_.drafters) return;
  const double now = drafting_.clock();
  if (flight.timed && drafting_.returned)
    drafting_.lengths.times().add(flight.draws, flight.drafts(), now - *drafting_.returned);
  drafting_.returned = now;
}

// The number of drafts that have room after the sequence's next token. Drafts get a page only if one is left for every
// other sequence that may need one, and cause no preemption.
int64_t Scheduler::room_for_drafts(int32_t slot, int64_t wanted) {
  Sequence& sequence = at(slot);
  const int64_t page = limits_.caches.page_size;
  while (std::ssize(sequence.pages) * page < sequence.num_computed + 1 + wanted && pages_.available() >= growing()) {
    sequence.pages.push_back(pages_.allocate());
    next_.added.push_back({slot, sequence.pages.back()});
  }
  return std::min(wanted, std::ssize(sequence.pages) * page - sequence.num_computed - 1);
}

// Whether drafts of this sequence are streamed, as stages would idle. Masks and rules that count tokens would need the
// drafts of earlier steps.
bool Scheduler::streams(const Sequence& sequence) const {
  return limits_.streams_drafts && active() < limits_.steps_in_flight && sequence.drafter &&
         !sequence.request.rule.counts() && sequence.request.constraint.empty();
}

// Makes a step of the next draft of a sequence whose newest token, or earlier draft, is in flight. A wrong draft costs
// only the time of stages that would idle.
void Scheduler::stream_draft() {
  const int64_t most = std::min(limits_.steps_in_flight - 1, limits_.caches.max_drafts);
  const auto can_stream = [&](const Sequence& one) {
    const int64_t fed = std::ssize(one.tokens) + std::ssize(one.streamed);
    return one.state == State::kRunning && streams(one) && one.awaited > 0 && std::ssize(one.streamed) < most &&
           one.num_computed == fed && fed + 1 < one.prompt + one.request.max_new;
  };
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < limits_.caches.slots; ++slot)
    if (can_stream(at(slot))) slots.push_back(slot);
  std::ranges::stable_sort(slots, {}, [&](int32_t slot) { return at(slot).streamed.size(); });
  for (const int32_t slot : slots) {
    Sequence& one = at(slot);
    const size_t before = one.streamed.size();
    const std::vector<int32_t> drafts = one.drafter->propose(one.tokens, static_cast<int64_t>(before) + 1);
    // The drafts in flight must still be those that come first.
    if (drafts.size() <= before || !std::equal(one.streamed.begin(), one.streamed.end(), drafts.begin()) ||
        drafts[before] < 0 || drafts[before] >= limits_.vocab || room_for_drafts(slot, 0) < 0)
      continue;
    ++one.in_flight;
    next_.entries.push_back({.slot = slot, .count = 1, .drafts = 1});
    next_.drafts.push_back(drafts[before]);
    return;
  }
}

// After a token returned that a streamed draft follows. True if the draft was right: then its step draws the next
// token. Otherwise all streamed steps are void.
bool Scheduler::on_streamed(Sequence& sequence, DrawnToken& drawn) {
  const bool right = !drawn.ends && drawn.token == sequence.streamed.front();
  if (!drawn.ends) {
    drawn.drafts = 1;
    drawn.drafted = right;
    ++counts_.draft_rounds;
    ++counts_.draft_tokens;
    counts_.accepted.resize(static_cast<size_t>(limits_.caches.max_drafts));
    counts_.accepted.front() += right ? 1 : 0;
  }
  if (right) {
    sequence.streamed.erase(sequence.streamed.begin());
    return true;
  }
  const int64_t wrong = std::ssize(sequence.streamed);
  sequence.voided = wrong;
  sequence.awaited -= wrong;
  sequence.num_computed -= wrong;
  sequence.rejected = static_cast<int32_t>(wrong);
  sequence.streamed.clear();
  return false;
}

// Lets the drafter read a prompt with its chunks, rather than all of it before the first draft.
void Scheduler::read_ahead(Sequence& sequence) {
  const std::span<const int32_t> tokens(sequence.tokens);
  sequence.drafter->read(tokens.first(std::min(static_cast<size_t>(sequence.num_computed), tokens.size())));
}

// After a block returned: goes back to the tokens that were right, so that only their pages are kept.
void Scheduler::on_verified(Sequence& sequence, int32_t drafts, std::span<const DrawnToken> drawn) {
  const auto accepted = static_cast<int32_t>(std::ranges::count_if(drawn, &DrawnToken::drafted));
  sequence.accepted = accepted;
  sequence.rejected = drafts - accepted;
  sequence.num_computed -= sequence.rejected;
  sequence.draft_success.on_verified(drafts, accepted);
  ++counts_.draft_rounds;
  counts_.draft_tokens += drafts;
  counts_.accepted.resize(static_cast<size_t>(limits_.caches.max_drafts));
  for (int32_t place = 0; place < accepted; ++place) ++counts_.accepted[static_cast<size_t>(place)];
}

}  // namespace lfm2
