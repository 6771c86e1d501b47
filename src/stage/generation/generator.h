// Generates through one stage of the pipeline: the counterpart of Pipeline for sequences that grow. Step by step: learn
// what the step is (first stage: decide it), take in its hidden states, compute, hand on; the last stage draws tokens
// and sends them back to the first. Steps follow one another through two slots, as the micro-batches of Pipeline do.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/channel.h"
#include "stage/generation/duration_histogram.h"
#include "stage/generation/scheduler.h"
#include "stage/io/completion.h"
#include "stage/pipeline/stage_run.h"

namespace lfm2 {

struct GenerationPlan {
  int64_t most_new = 0;  // tokens of each sample
  int64_t max_positions = 0;
  SamplingRule rule;
  std::vector<int32_t> eos_tokens;  // that end a text; empty: none does
  int64_t top_k = 0;                // --top-logprobs
  SampleRange samples;              // of this pipeline
  int64_t longest = 0;              // cached positions of the longest sequence
  ScheduleLimits limits;

  int64_t most_tokens() const { return limits.most_sequences + limits.prompt_tokens; }  // of one step
  int64_t table_width() const { return pages_for(longest, limits.caches.page); }
};

// What the first stage saw of a run, in seconds.
struct GenerationTimes {
  DurationHistogram to_first_token;  // of each sample, from its entry into the pipeline on
  DurationHistogram between_tokens;  // of each token that follows another
};

class Generator {
 public:
  // Everything a run needs is allocated here. There is a control link, also for a single stage.
  Generator(const StageLinks& links, const GenerationPlan& plan, DType compute, bool traced = false);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  ~Generator() { links_.backend.compute().drain(); }

  // One pass over the job. `samples`: the prompts, used by the first stage; consumers are used by the last, which tells
  // `on_tokens` how many tokens were drawn, and of sequences that ended, how many more could have been. Once `stop`
  // says so on any stage, no step is begun any more, and sequences that have not ended are dropped.
  void run(const Samples& samples, const std::vector<CompletionConsumer*>& consumers,
           const std::function<void(int64_t tokens)>& on_tokens, const std::function<bool()>& stop = {});
  bool finished() const { return finished_; }  // the last run, as far as this stage knows: the first one decides

  StageTimes times() const { return run_.times(); }  // of the last run
  const GenerationTimes& generation_times() const { return generation_times_; }
  const std::vector<TraceEvent>& trace() const { return run_.trace(); }  // of the last run; empty unless asked for
  int64_t steps() const { return steps_; }
  int64_t largest_step() const { return largest_step_; }  // sequences
  uint64_t activation_bytes() const { return memory_.bytes() + working_bytes_; }
  uint64_t cache_bytes() const { return caches_.bytes(); }

 private:
  // Where the arrays of a step lie, on the device or in its staging memory.
  struct Layout {
    Tensor ids, draw_rows, draws;
    Batch batch;
    size_t bytes = 0;
    Layout(std::byte* memory, const StepArrays& arrays, int64_t table_width);
  };
  // What comes back of a step: [draws] each, in one piece of memory.
  struct Drawn {
    Tensor ids, log_probs, top_ids, top_log_probs;
    size_t bytes = 0;
    Drawn(std::byte* memory, int64_t draws, int64_t top_k);
  };
  struct Slot {
    Tensor residual;  // [most tokens, hidden] act
    Buffer staging;   // host: the step's arrays on their way to the device
    Buffer results;   // host, last stage: Drawn
    std::unique_ptr<Event> computed;
    bool pending = false;                // last stage: its results were not looked at yet
    int64_t step = 0;                    // whose they are
    std::vector<int32_t> drawing_slots;  // of sequences
  };
  // Steps of this shape enqueue the same work: recorded when they have come some times.
  struct Shape {
    int64_t slot, tokens, length_bound;
    auto operator<=>(const Shape&) const = default;
  };

  ScheduledStep next_step();
  bool take_tokens();
  void wait_for_tokens();
  void upload(const StepArrays& arrays, const std::vector<int32_t>& ids, Slot& slot);
  void wait_for_free_slot(int slot_index, int64_t previous);
  void make_room_for_recordings();
  void enqueue(const StepArrays& arrays, int slot, int64_t step);
  void compute(const Layout& layout, const Slot& slot);
  void draw(const Layout& layout, const Tensor& residual, const Slot& slot);
  void collect_results();  // last stage
  void hand_out(Slot& slot);

  const StageLinks links_;
  ControlLink& control_;
  GenerationPlan plan_;
  DType compute_;

  Caches caches_;
  TensorMemory memory_;
  uint64_t working_bytes_ = 0;  // of the scratch, and of the arrays of a step
  std::array<Slot, kSlots> slots_;
  Buffer arrays_;  // device: of the step that computes
  Buffer drawn_;   // device, last stage
  Tensor logits_;  // [kHeadRows, vocab] fp32, last stage
  Scratch scratch_;
  struct Recorded {
    int64_t times = 0;  // that the shape came
    std::unique_ptr<Recording> work;
  };
  std::map<Shape, Recorded> recordings_;

  // Of the run that goes on:
  std::optional<SequenceTable> table_;
  std::optional<Scheduler> scheduler_;  // first stage
  std::vector<CompletionConsumer*> consumers_;
  std::function<void(int64_t)> on_tokens_;
  bool finished_ = false;
  std::vector<Completion> open_;   // last stage, [slots]
  std::vector<int64_t> most_new_;  // last stage, [slots]
  std::deque<int> unread_;         // last stage: slots in the order of their steps
  int64_t steps_ = 0, largest_step_ = 0;
  std::vector<double> token_time_;  // first stage, [slots]: of the newest
  GenerationTimes generation_times_;
  StageRun run_;
};

}  // namespace lfm2
