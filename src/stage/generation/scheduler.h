// Rank 0's part of a generation: which tokens of which sequences make up the next step. Continuous batching for a
// pipeline: as many steps in flight as there are stages, each with its share of the sequences; a sequence that ends
// leaves its slot and pages to the next one waiting, without the pipeline being drained. Pure: tested without MPI or
// devices.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "stage/io/input_file.h"
#include "stage/pipeline/sequence_table.h"

namespace lfm2 {

struct ScheduleLimits {
  int64_t steps_in_flight = 1;   // stages of the pipeline
  int64_t most_sequences = 1;    // in one step
  int64_t prompt_tokens = 1024;  // of all prompts together in one step, so that a long one never stalls the others
  CacheShape caches;
};

struct ScheduledStep {
  Step step;
  std::vector<int32_t> ids;  // of its tokens
};

// A token that came back from the last stage.
struct DrawnToken {
  int32_t token = 0;
  bool ends = false;  // the sequence: nothing follows
};

// The most tokens that may follow a prompt: as asked, within the model's positions.
constexpr int64_t most_new_tokens(int64_t prompt, int64_t asked, int64_t max_positions) {
  return std::min(asked, max_positions - prompt);
}

class Scheduler {
 public:
  // Samples `range` of `samples`, which must outlive this; each is continued by at most `most_new` tokens.
  Scheduler(const Samples& samples, SampleRange range, int64_t most_new, int64_t max_positions, ScheduleLimits limits);

  // The next step; nothing while the pipeline is full or no sequence can go on.
  std::optional<ScheduledStep> next();
  // The tokens of the oldest step in flight, one for each of its sequences that drew (StepArrays::draw_slots).
  void take(const std::vector<DrawnToken>& tokens);
  bool finished() const { return waiting() == 0 && active_ == 0; }
  bool in_flight() const { return !in_flight_.empty(); }  // steps whose tokens are still to come

  // What came with the last take(), one for each token.
  struct Arrival {
    int32_t slot = 0;
    bool first = false;
  };
  const std::vector<Arrival>& arrivals() const { return arrivals_; }

 private:
  struct Slot {
    int32_t sample = -1;
    int64_t prompt = 0, most_new = 0;
    int64_t fed = 0;  // tokens that went into steps
    int32_t newest = 0;
    bool seen_first = false;
  };
  int64_t waiting() const { return range_.count - admitted_count_; }
  int64_t prompt_length(int64_t sample) const;
  bool admit(Step& step);

  const Samples& samples_;
  SampleRange range_;
  int64_t most_new_, max_positions_;
  ScheduleLimits limits_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_, released_;  // released_: not yet in a step
  int64_t free_pages_ = 0, admitted_count_ = 0, active_ = 0;
  std::deque<int32_t> ready_, prompts_;         // slots: a token came back; a part of the prompt is left
  std::deque<std::vector<int32_t>> in_flight_;  // the slots that draw in each step
  std::vector<Arrival> arrivals_;
};

}  // namespace lfm2
