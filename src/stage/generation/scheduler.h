// The first stage's part of a generation: which tokens of which sequences make up the next step. Continuous batching
// for a pipeline: as many steps in flight as there are stages, each with its share of the sequences; a sequence that
// ends, or is taken back, leaves its slot and pages to the next one, without the pipeline being drained. Sequences take
// pages of the caches as they grow; where none is left, the youngest sequence gives all of its own back, and is fed
// again from its start when there is room. Pure: tested without MPI or devices.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "stage/generation/request.h"
#include "stage/pipeline/sequence_table.h"

namespace lfm2 {

struct ScheduleLimits {
  int64_t steps_in_flight = 1;   // stages of the pipeline
  int64_t max_sequences = 1;     // in one step
  int64_t prompt_tokens = 1024;  // of all prompts together in one step, so that a long one never stalls the others
  CacheShape caches;             // the longest sequence must fit into the pages when it is alone
};

struct ScheduledStep {
  Step step;
  std::vector<int32_t> ids;  // of its tokens
};

class Scheduler {
 public:
  // `source` must outlive this.
  Scheduler(RequestSource& source, ScheduleLimits limits);

  // The next step; nothing while the pipeline is full or there is nothing to say. A step without entries only releases.
  std::optional<ScheduledStep> next();
  // The tokens of the oldest step in flight, one for each of its sequences that drew (StepArrays::draw_slots).
  void take(const std::vector<DrawnToken>& tokens);
  bool finished() const;  // no sequence runs or waits, and none will come; next() may still have releases to say
  bool in_flight() const { return !in_flight_.empty(); }  // steps whose tokens are still to come
  int64_t preemptions() const { return preemptions_; }    // sequences that gave their pages back

  // What came with the last take(), one for each token.
  struct Arrival {
    int32_t slot = 0;
    bool first = false;
  };
  const std::vector<Arrival>& arrivals() const { return arrivals_; }

 private:
  struct Sequence {
    Request request;
    std::vector<int32_t> tokens;  // the prompt and what was drawn
    int64_t number = 0;           // in the order in which requests came: the youngest has the largest
    int64_t known = 0, fed = 0;   // of the tokens: before the next one is drawn; that went into steps
    int64_t pages = 0;
    int64_t in_flight = 0;  // steps that it is part of
    bool used = false, taken_back = false, seen_first = false;
  };
  // The sequences of one step: all of them, and those that draw.
  struct Flight {
    std::vector<int32_t> slots, drawing;
  };

  Sequence& at(int32_t slot) { return sequences_[static_cast<size_t>(slot)]; }
  void look_for_taken_back();
  void choose_ready(std::vector<StepEntry>& singles, size_t share);
  void choose_prompts(Step& step, std::vector<StepEntry>& singles, std::vector<StepEntry>& chunks, size_t share);
  bool admit(Step& step);
  std::optional<Sequence> next_waiting();
  int64_t growing() const;
  bool has_page_for_next(int32_t slot);
  void preempt(int32_t slot);
  Sequence release(int32_t slot);
  ScheduledStep compose(Step step, std::vector<StepEntry> singles, const std::vector<StepEntry>& chunks);

  RequestSource& source_;
  ScheduleLimits limits_;
  std::vector<Sequence> sequences_;  // [slots]
  std::deque<Sequence> waiting_;     // that were preempted, or found no room, the oldest first
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> released_, dropped_;  // not yet said in a step
  int64_t free_pages_ = 0, admitted_ = 0, active_ = 0, preemptions_ = 0;
  std::deque<int32_t> ready_, prompts_;  // slots: a token came back; a part of the known tokens is left
  std::deque<Flight> in_flight_;
  std::vector<Arrival> arrivals_;
};

}  // namespace lfm2
