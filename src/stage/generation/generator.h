// Runs a generation on one stage of the pipeline, as Scorer runs a scoring job. The first stage composes each step and
// sends it to the other stages. A stage receives the hidden states, computes its layers and sends them on. The last
// stage draws tokens and sends them to the first. Steps alternate between two buffers, as micro-batches do.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "base/duration_histogram.h"
#include "comm/channel.h"
#include "stage/generation/open_completions.h"
#include "stage/generation/scheduler.h"
#include "stage/generation/step_runner.h"
#include "stage/pipeline/completion.h"
#include "stage/pipeline/stage_run.h"

namespace lfm2 {

// Latencies of one run in seconds, as the first stage measures them.
struct GenerationTimes {
  DurationHistogram to_first_token;  // from the admission of a sequence to its first token
  DurationHistogram between_tokens;  // from one token of a sequence to its next
};

// Counts of one run on this stage.
struct GenerationCounts {
  int64_t steps = 0;          // steps that computed something
  int64_t largest_step = 0;   // sequences in the largest step
  SchedulerCounts scheduled;  // first stage
};

class Generator {
 public:
  // Allocates everything that a run needs. `links` has a control link, even for a single stage.
  Generator(const StageLinks& links, const GenerationPlan& plan, DType compute, bool traced = false);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Generates until every request has ended. The first stage reads requests from `requests`, which is null on the other
  // stages. The last stage uses `consumers`, `on_progress`, `token_text` if requests have stop texts, and `constraints`
  // if they are constrained.
  // `on_progress` measures progress towards the sum of all limits. After each step it gets the number of tokens drawn
  // plus, for each sequence that ended early, the rest of its limit. Once `stop` returns true on any stage, no further
  // step begins, and unfinished sequences are dropped.
  void run(RequestSource* requests, const std::vector<CompletionConsumer*>& consumers,
           const std::function<void(int64_t tokens)>& on_progress, const std::function<bool()>& stop = {},
           const TokenText& token_text = {}, grammar::ConstraintCache* constraints = nullptr);
  // First stage: whether the last run ended without a stop. True on the other stages.
  bool finished() const { return finished_; }

  StageTimes times() const { return run_.times(); }  // of the last run
  const GenerationTimes& generation_times() const { return generation_times_; }
  const GenerationCounts& counts() const { return counts_; }
  const std::vector<TraceEvent>& trace() const { return run_.trace(); }  // of the last run; empty unless asked for
  uint64_t activation_bytes() const { return runner_.activation_bytes(); }
  uint64_t cache_bytes() const { return runner_.cache_bytes(); }
  // Pages and sequence slots of the caches after the last step. All stages agree on them.
  int64_t free_pages() const { return table_ ? table_->free_pages() : 0; }
  int64_t used_slots() const { return table_ ? table_->used_slots() : 0; }
  const WindowPages* windows() const { return table_ ? table_->windows() : nullptr; }  // null: there are none

 private:
  // A step on the last stage whose results are not read yet.
  struct Unread {
    int buffer = 0;
    int64_t step = 0;
    StepSamples samples;
    ResultShape results;
    std::vector<StepArrays::WantedDrafts> wanted = {};
    std::vector<DrawnToken> tokens = {};   // while drafts are made that follow them
    std::vector<size_t> last_tokens = {};  // of the texts that get drafts, the index of each one's last token
  };
  // The members of the first stage.
  struct First {
    RequestSource& requests;
    Scheduler scheduler;
    // [slots]: the time of each sequence's newest token or, before that, of its admission.
    std::vector<double> token_time;
    double last_message = 0;  // the time of the last message to the other stages
  };
  // The members of the last stage.
  struct Last {
    OpenCompletions completions;
    std::deque<Unread> unread;  // in the order of the steps
    std::function<void(int64_t)> on_progress;
  };

  ScheduledStep next_step();
  Step receive_step();
  bool receive_tokens();
  void wait_for_tokens();
  void idle();
  void share_times();
  void write_masks(const StepArrays& arrays, int buffer);
  void run_step(const ScheduledStep& scheduled, StepArrays& arrays);
  void wait_for_free_buffer(int buffer, int64_t previous);
  bool is_unread(int buffer) const;
  StepSamples samples_of(const StepArrays& arrays) const;
  void collect_results();  // last stage: passes on the results of computed steps
  bool make_drafts(Unread& step);
  void send_tokens(Unread& step);

  const StageLinks links_;
  const GenerationPlan plan_;
  StepRunner runner_;

  // The state of the current run:
  std::optional<SequenceTable> table_;
  std::optional<First> first_;
  std::optional<Last> last_;
  bool finished_ = false;
  double times_shared_ = 0;  // when the stages' times were last shared
  GenerationCounts counts_;
  GenerationTimes generation_times_;
  StageRun run_;
};

}  // namespace lfm2
