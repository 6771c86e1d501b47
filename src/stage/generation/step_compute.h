// What a stage computes of a step: its caches and buffers, the step's arrays on their way to the device, the forward,
// and on the last stage the draw of tokens.
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
  int64_t top_k = 0;    // --top-logprobs: so many come with each token
  ScheduleLimits limits;

  int64_t max_tokens() const { return limits.max_sequences + limits.prompt_tokens; }  // of one step
  int64_t table_width() const { return pages_for(longest, limits.caches.page); }
};

// What comes back of a step: [draws] each, in one piece of memory.
struct DrawnArrays {
  Tensor ids, log_probs, top_ids, top_log_probs;  // top_*: [draws, top_k]
  size_t bytes = 0;
  DrawnArrays(std::byte* memory, int64_t draws, int64_t top_k);
};

class StepCompute {
 public:
  StepCompute(const StageLinks& links, const GenerationPlan& plan, DType compute);
  StepCompute(const StepCompute&) = delete;
  StepCompute& operator=(const StepCompute&) = delete;
  ~StepCompute() { links_.backend.compute().drain(); }

  // A step goes through one of the stage's two buffers: its hidden states [tokens, hidden], in place.
  Tensor hidden(int buffer, int64_t tokens) const { return at(buffer).residual.rows(0, tokens); }
  Event& computed(int buffer) const { return *at(buffer).computed; }
  bool all_computed() const { return computed(0).done() && computed(1).done(); }
  // Sends the arrays of a step to the device. `ids` [tokens], on the first stage.
  void upload(const StepArrays& arrays, const std::vector<int32_t>& ids, int buffer);
  // Computes the step whose arrays were sent last. A step that comes often is recorded, which may need all others to
  // be done: `wait_until_computed` waits for that.
  void enqueue(const StepArrays& arrays, int buffer, int64_t step, const std::function<void()>& wait_until_computed);
  // Last stage: what was drawn, once the step is computed.
  DrawnArrays drawn(int buffer, int64_t draws) const;

  uint64_t activation_bytes() const { return memory_.bytes() + working_bytes_; }
  uint64_t cache_bytes() const { return caches_.bytes(); }

 private:
  // Where the arrays of a step lie, on the device or in its staging memory.
  struct Layout {
    Tensor ids, draw_rows, draws, rules;
    Batch batch;
    size_t bytes = 0;
    Layout(std::byte* memory, const StepArrays& arrays, int64_t table_width);
  };
  struct StepBuffer {
    Tensor residual;  // [most tokens, hidden] act
    Buffer staging;   // host: the step's arrays on their way to the device
    Buffer results;   // host, last stage: DrawnArrays
    std::unique_ptr<Event> computed;
  };
  // Steps of this shape enqueue the same work: recorded when they have come some times.
  struct Shape {
    int64_t buffer, tokens, length_bound;
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    int64_t times = 0;  // that the shape came
    std::unique_ptr<Recording> work;
  };

  const StepBuffer& at(int buffer) const { return buffers_[static_cast<size_t>(buffer)]; }
  void compute(const Layout& layout, const StepBuffer& buffer);
  void draw(const Layout& layout, const Tensor& residual, const StepBuffer& buffer);
  Recording* recording_of(const Shape& shape, const Layout& layout, const StepBuffer& buffer,
                          const std::function<void()>& wait_until_computed);

  const StageLinks links_;
  const GenerationPlan plan_;
  Caches caches_;
  TensorMemory memory_;
  uint64_t working_bytes_ = 0;  // of the scratch, and of the arrays of a step
  std::array<StepBuffer, kBuffers> buffers_;
  Buffer arrays_;  // device: of the step that computes
  Buffer drawn_;   // device, last stage
  Tensor logits_;  // [kHeadRows, vocab] fp32, last stage
  Scratch scratch_;
  std::map<Shape, Recorded> recordings_;
};

}  // namespace lfm2
