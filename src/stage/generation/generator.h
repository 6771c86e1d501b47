// Generates through one stage of the pipeline: the counterpart of Scorer for sequences that grow. Step by step: learn
// what the step is (first stage: decide it), take in its hidden states, compute, hand on; the last stage draws tokens
// and sends them back to the first. Steps follow one another through two buffers, as the micro-batches of Scorer do.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "comm/channel.h"
#include "stage/generation/duration_histogram.h"
#include "stage/generation/open_completions.h"
#include "stage/generation/scheduler.h"
#include "stage/generation/step_compute.h"
#include "stage/io/completion.h"
#include "stage/pipeline/stage_run.h"

namespace lfm2 {

// What the first stage saw of a run, in seconds.
struct GenerationTimes {
  DurationHistogram to_first_token;  // of each sample, from its entry into the pipeline on
  DurationHistogram between_tokens;  // of each token that follows another
};

// What a run came to on this stage.
struct GenerationCounts {
  int64_t steps = 0;         // that were computed
  int64_t largest_step = 0;  // sequences
  int64_t preemptions = 0;   // first stage: sequences that gave their pages back
};

class Generator {
 public:
  // Everything a run needs is allocated here. There is a control link, also for a single stage.
  Generator(const StageLinks& links, const GenerationPlan& plan, DType compute, bool traced = false);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Generates until the requests have ended: what `requests` gives (first stage; null on the others). Consumers are
  // used by the last stage, which tells `on_tokens` how many tokens were drawn, and of sequences that ended, how many
  // more could have been. Once `stop` says so on any stage, no step is begun any more, and sequences that have not
  // ended are dropped.
  void run(RequestSource* requests, const std::vector<CompletionConsumer*>& consumers,
           const std::function<void(int64_t tokens)>& on_tokens, const std::function<bool()>& stop = {});
  bool finished() const { return finished_; }  // the last run, as far as this stage knows: the first one decides

  StageTimes times() const { return run_.times(); }  // of the last run
  const GenerationTimes& generation_times() const { return generation_times_; }
  const GenerationCounts& counts() const { return counts_; }
  const std::vector<TraceEvent>& trace() const { return run_.trace(); }  // of the last run; empty unless asked for
  uint64_t activation_bytes() const { return compute_.activation_bytes(); }
  uint64_t cache_bytes() const { return compute_.cache_bytes(); }
  // Of the caches, as all stages see them after the last step.
  int64_t free_pages() const { return table_ ? table_->free_pages() : 0; }
  int64_t used_slots() const { return table_ ? table_->used_slots() : 0; }

 private:
  // Last stage: the results of a step that were not looked at yet.
  struct Unread {
    int buffer = 0;
    int64_t step = 0;
    std::vector<int32_t> samples;  // that drew
  };
  // First stage.
  struct First {
    Scheduler scheduler;
    std::vector<double> token_time;  // [slots]: of the newest
    double told = 0;                 // when the other stages heard of the run last
  };

  ScheduledStep next_step();
  Step receive_step();
  bool take_tokens();
  void wait_for_tokens();
  void idle();
  void run_step(const ScheduledStep& scheduled, StepArrays& arrays);
  void wait_for_free_buffer(int buffer, int64_t previous);
  bool is_unread(int buffer) const;
  void collect_results();  // last stage

  const StageLinks links_;
  const GenerationPlan plan_;
  StepCompute compute_;

  // Of the run that goes on:
  std::optional<SequenceTable> table_;
  std::optional<First> first_;
  std::optional<OpenCompletions> completions_;  // last stage
  std::deque<Unread> unread_;                   // last stage, in the order of the steps
  std::function<void(int64_t)> on_tokens_;
  bool finished_ = false;
  GenerationCounts counts_;
  GenerationTimes generation_times_;
  StageRun run_;
};

}  // namespace lfm2
