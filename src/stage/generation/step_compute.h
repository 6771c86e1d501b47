// Computes steps on one stage. It owns the stage's caches and buffers, sends the arrays of a step to the device, runs
// the forward, and draws tokens on the last stage.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/channel.h"
#include "kernels/tensor_memory.h"
#include "stage/generation/scheduler.h"
#include "stage/pipeline/stage_run.h"

namespace lfm2 {

// The sizes of a generation, the same for all its requests.
struct GenerationPlan {
  int64_t longest = 0;  // cached positions of the longest sequence
  int64_t top_k = 0;    // --top-logprobs: how many log-probabilities come with each token
  // What rules that adjust logits may need: counts of tokens, and the largest number of edits of a request.
  bool counts = false;
  int64_t edits = 0;
  ScheduleLimits limits;
  double times_interval = 0;  // seconds after which the source of requests is told the stages' times again; 0: never

  int64_t max_tokens() const { return limits.max_sequences + limits.prompt_tokens; }  // tokens of the largest step
  bool adjusts() const { return counts || edits > 0; }
  // Bytes of the tokens of the prefix cache that rules may count in one step.
  uint64_t prefix_bytes() const;
  // Bytes that the last stage keeps for adjusting logits.
  uint64_t adjustment_bytes(int64_t vocab) const;
  int64_t table_width() const { return pages_for(longest, limits.caches.page); }
};

// The results of a step, one piece of memory: a token id and its log-probability for each draw, [draws], and the best
// ones in top_*, [draws, top_k].
struct DrawnArrays {
  Tensor ids, log_probs, top_ids, top_log_probs;
  size_t bytes = 0;
  DrawnArrays(std::byte* memory, int64_t draws, int64_t top_k);
};

class StepCompute {
 public:
  StepCompute(const StageLinks& links, const GenerationPlan& plan, DType compute);
  StepCompute(const StepCompute&) = delete;
  StepCompute& operator=(const StepCompute&) = delete;
  ~StepCompute() { links_.backend.compute().drain(); }

  // The hidden states [tokens, hidden] of a step in one of the stage's two buffers: received, computed and sent in
  // place.
  Tensor hidden(int buffer, int64_t tokens) const { return at(buffer).residual.rows(0, tokens); }
  Event& computed(int buffer) const { return *at(buffer).computed; }
  bool all_computed() const { return computed(0).done() && computed(1).done(); }
  // Copies the arrays of a step to the device. `ids` are the step's tokens on the first stage, and empty on the others.
  void upload(const StepArrays& arrays, const std::vector<int32_t>& ids, int buffer);
  // Enqueues the step whose arrays were uploaded last. Work that comes often is recorded. Before recordings are thrown
  // away, `wait_until_computed` is called, which returns when no enqueued step still runs.
  void enqueue(const StepArrays& arrays, int buffer, int64_t step, const std::function<void()>& wait_until_computed);
  // Last stage: the results in `buffer`, whose step must be computed.
  DrawnArrays drawn(int buffer, int64_t draws) const;

  uint64_t activation_bytes() const { return memory_.bytes() + working_bytes_; }
  uint64_t cache_bytes() const { return caches_.bytes(); }

 private:
  // Where the arrays of a step lie, on the device or in its staging memory.
  struct Layout {
    Tensor ids, keepers, draw_rows, draws, draw_slots, rules;
    Batch batch;
    size_t bytes = 0;
    Layout(std::byte* memory, const StepArrays& arrays, int64_t table_width);
  };
  struct StepBuffer {
    Tensor residual;  // [max_tokens, hidden] act
    Buffer staging;   // host: the step's arrays on their way to the device
    Buffer edits;     // host, last stage: the edits of sequences that begin, on their way to the device
    Buffer prefixes;  // host, last stage: StepArrays::prefixes, on their way to the device
    Buffer results;   // host, last stage: DrawnArrays
    std::unique_ptr<Event> computed;
  };
  // Steps of equal shape enqueue the same work, which is recorded once the shape has come several times.
  struct Shape {
    int64_t buffer, tokens, length_bound;
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    int64_t times = 0;  // how often the shape has come
    std::unique_ptr<Recording> work;
  };

  const StepBuffer& at(int buffer) const { return buffers_[static_cast<size_t>(buffer)]; }
  void compute(const Layout& layout, const StepBuffer& buffer);
  void allocate_adjustments(int64_t rows);
  void upload_edits(const StepArrays& arrays, const StepBuffer& buffer);
  void count_prefixes(const StepArrays& arrays, const StepBuffer& buffer);
  void draw(const Layout& layout, const Tensor& residual, const StepBuffer& buffer);
  Recording* recording_of(const Shape& shape, const Layout& layout, const StepBuffer& buffer,
                          const std::function<void()>& wait_until_computed);

  const StageLinks links_;
  const GenerationPlan plan_;
  Caches caches_;
  TensorMemory memory_;
  uint64_t working_bytes_ = 0;  // bytes of the scratch, and of the arrays of a step
  std::array<StepBuffer, kBuffers> buffers_;
  Buffer arrays_;            // device: the arrays that were uploaded last
  Buffer drawn_;             // device, last stage: DrawnArrays
  Buffer prefixes_;          // device, last stage: StepArrays::prefixes, where rules count and prefixes are kept
  Tensor logits_;            // [kHeadRows, vocab] fp32, last stage
  Tensor adjusted_;          // the same, where a rule may adjust logits
  Adjustments adjustments_;  // last stage, where a rule may need them
  Scratch scratch_;
  std::map<Shape, Recorded> recordings_;
};

}  // namespace lfm2
