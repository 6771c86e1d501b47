// First come, first served: decoding before prompts, prompts in the order of the samples.
#include "stage/generation/scheduler.h"

#include <algorithm>

#include "kernels/error.h"

namespace lfm2 {

Scheduler::Scheduler(const Samples& samples, SampleRange range, int64_t most_new, int64_t max_positions,
                     ScheduleLimits limits)
    : samples_(samples),
      range_(range),
      most_new_(most_new),
      max_positions_(max_positions),
      limits_(limits),
      slots_(static_cast<size_t>(limits.caches.slots)),
      free_pages_(limits.caches.pages) {
  expect(limits.steps_in_flight > 0 && limits.most_sequences > 0 && limits.prompt_tokens > 0 && limits.caches.slots > 0,
         "Scheduler: limits");
  for (int64_t slot = limits.caches.slots; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
}

int64_t Scheduler::prompt_length(int64_t sample) const { return samples_.offsets.length(sample); }

// The sample that has waited longest, if there is room for all that it may become.
bool Scheduler::admit(Step& step) {
  if (waiting() == 0 || free_slots_.empty()) return false;
  const int64_t sample = range_.first + admitted_count_, prompt = prompt_length(sample);
  const int64_t most_new = most_new_tokens(prompt, most_new_, max_positions_);
  const int64_t pages = pages_for(cached_positions(prompt, most_new), limits_.caches.page);
  if (pages > free_pages_) return false;
  free_pages_ -= pages;
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<size_t>(slot)] = {.sample = static_cast<int32_t>(sample), .prompt = prompt, .most_new = most_new};
  step.admitted.push_back({slot, static_cast<int32_t>(samples_.numbers[sample]), static_cast<int32_t>(prompt),
                           static_cast<int32_t>(most_new)});
  prompts_.push_back(slot);
  ++admitted_count_;
  ++active_;
  return true;
}

std::optional<ScheduledStep> Scheduler::next() {
  if (static_cast<int64_t>(in_flight_.size()) >= limits_.steps_in_flight) return std::nullopt;
  const int64_t could_run = active_ + std::min(waiting(), static_cast<int64_t>(free_slots_.size()));
  const int64_t share =
      std::min(limits_.most_sequences, (could_run + limits_.steps_in_flight - 1) / limits_.steps_in_flight);
  ScheduledStep scheduled;
  Step& step = scheduled.step;
  std::vector<StepEntry> singles, chunks;
  const auto chosen = [&] { return static_cast<int64_t>(singles.size() + chunks.size()); };
  while (!ready_.empty() && chosen() < share) {
    singles.push_back({ready_.front(), 1});
    ready_.pop_front();
  }
  int64_t budget = limits_.prompt_tokens;
  std::deque<int32_t> unfinished;
  while (budget > 0 && chosen() < share && (!prompts_.empty() || admit(step))) {
    const int32_t slot = prompts_.front();
    prompts_.pop_front();
    const Slot& sequence = slots_[static_cast<size_t>(slot)];
    const int64_t count = std::min(budget, sequence.prompt - sequence.fed);
    (count == 1 ? singles : chunks).push_back({slot, static_cast<int32_t>(count)});
    budget -= count;
    if (sequence.fed + count < sequence.prompt) unfinished.push_back(slot);
  }
  prompts_.insert(prompts_.begin(), unfinished.begin(), unfinished.end());  // first again in the next step
  if (chosen() == 0) return std::nullopt;

  step.entries = std::move(singles);
  step.entries.insert(step.entries.end(), chunks.begin(), chunks.end());
  step.released = std::exchange(released_, {});
  std::vector<int32_t> drawing;
  for (const StepEntry& entry : step.entries) {
    Slot& sequence = slots_[static_cast<size_t>(entry.slot)];
    if (sequence.fed < sequence.prompt) {
      const auto piece = samples_.tokens(samples_.offsets[sequence.sample] + sequence.fed, entry.count);
      scheduled.ids.insert(scheduled.ids.end(), piece.begin(), piece.end());
    } else {
      scheduled.ids.push_back(sequence.newest);
    }
    sequence.fed += entry.count;
    if (sequence.fed >= sequence.prompt) drawing.push_back(entry.slot);
  }
  in_flight_.push_back(std::move(drawing));
  return scheduled;
}

void Scheduler::take(const std::vector<DrawnToken>& tokens) {
  expect(!in_flight_.empty() && in_flight_.front().size() == tokens.size(), "Scheduler: tokens of another step");
  arrivals_.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t slot = in_flight_.front()[i];
    Slot& sequence = slots_[static_cast<size_t>(slot)];
    sequence.newest = tokens[i].token;
    arrivals_.push_back({slot, !std::exchange(sequence.seen_first, true)});
    if (!tokens[i].ends) {
      ready_.push_back(slot);
      continue;
    }
    free_pages_ += pages_for(cached_positions(sequence.prompt, sequence.most_new), limits_.caches.page);
    free_slots_.push_back(slot);
    released_.push_back(slot);
    --active_;
  }
  in_flight_.pop_front();
}

}  // namespace lfm2
