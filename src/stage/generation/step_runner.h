// Computes steps on one stage. It owns the stage's caches and buffers, uploads the arrays of a step, runs the forward,
// and draws tokens on the last stage. Steps run in order. So a step may be enqueued while the previous one runs, and
// use the tokens that the previous one draws.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/channel.h"
#include "stage/generation/draft_maker.h"
#include "stage/generation/generation_plan.h"
#include "stage/pipeline/model_runner.h"

namespace lfm2 {

// The numbers of results of a step.
struct ResultShape {
  int64_t draws = 0, scored = 0, hidden = 0;  // drawn tokens; scored tokens of prompts; hidden states
  int64_t top_k = 0;                          // top logprobs for each token
};

// The results of a step.
struct StepResults {
  struct Tokens {
    Tensor ids, log_probs;          // [tokens]
    Tensor top_ids, top_log_probs;  // [tokens, top_k]; empty where top_k is 0
  };
  Tokens drawn;
  Tokens scored;  // of prompts; `ids` is 1 for a top-1 token, else 0
  size_t bytes = 0;
  Tensor hidden = {};  // [hidden states, hidden] act; in separate memory
  StepResults(std::byte* memory, const ResultShape& shape);
};

class StepRunner {
 public:
  StepRunner(const StageLinks& links, const GenerationPlan& plan, DType compute);
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;
  ~StepRunner() { links_.backend.compute().drain(); }

  // The hidden states of a step in one of the stage's two buffers.
  BatchRows rows(int buffer, const StepArrays& arrays) const;
  // What a stage receives and sends of a step: its hidden states, with the taps kept so far.
  Tensor received(int buffer, const StepArrays& arrays) const;
  Tensor sent(int buffer, const StepArrays& arrays) const;
  DraftMaker* drafts() { return drafts_.get(); }  // last stage; null without a DSpark drafter
  Event& computed(int buffer) const { return *at(buffer).computed; }
  bool all_computed() const { return computed(0).done() && computed(1).done(); }
  // Copies the arrays of a step to the device, into a buffer whose previous step is computed. `ids` are the step's
  // tokens on the first stage, and empty on other stages.
  void upload(const StepArrays& arrays, const std::vector<int32_t>& ids, int buffer);
  // Enqueues the step whose arrays were uploaded last; on the last stage, if the step is constrained, its layers alone.
  // Frequent shapes are recorded (CUDA graphs). Before it destroys recordings, it calls `wait_until_computed`, which
  // returns when no enqueued step still runs.
  void enqueue(const StepArrays& arrays, int buffer, int64_t step, const std::function<void()>& wait_until_computed);
  // Last stage: the masks [draws, mask_words(vocab)] of a constrained step, on the host, to be written before
  // enqueue_results() enqueues the rest of this step. So the layers are computed while the host makes the masks.
  std::span<uint32_t> masks(int buffer) const;
  void enqueue_results(const StepArrays& arrays, int buffer, int64_t step,
                       const std::function<void()>& wait_until_computed);
  ResultShape result_shape(const StepArrays& arrays) const;
  // Last stage: the results in `buffer`; its step must be computed.
  StepResults results(int buffer, const ResultShape& shape) const;

  uint64_t activation_bytes() const {
    return runner_.bytes() + results_.bytes() + prefixes_.bytes() + kBuffers * at(0).masks.bytes() +
           (drafts_ ? drafts_->bytes() - drafts_->cache_bytes() : 0);
  }
  uint64_t cache_bytes() const { return caches_.bytes() + (drafts_ ? drafts_->cache_bytes() : 0); }

 private:
  // What is enqueued of a step at a time.
  enum class Part : uint8_t { kAll, kLayers, kResults };
  // A step whose arrays are on the device.
  struct Layout : BatchTensors {
    Part part = Part::kAll;
    ResultShape results;
    Tensor masks = {};  // [draws, words], if any draw has a mask
    bool adjusts = false,
         counts = false;  // whether any token is drawn from adjusted logits; whether any token is counted
    // Whether this is a pure decode step: each sequence has one row and draws a token.
    bool decodes() const { return batch.singles == batch.tokens && results.draws == batch.tokens; }
  };
  struct StepBuffer : BatchBuffer {
    BatchTensors uploaded_arrays;  // on the device
    Buffer edits;                  // host, last stage: the edits of new sequences, for upload
    Buffer prefixes;               // host, last stage: StepArrays::prefixes, for upload
    Buffer results;                // host, last stage: StepResults
    Buffer hidden;                 // host, last stage: hidden states for the results
    Buffer host_masks, masks;      // host and device, last stage, where draws may have masks
    std::unique_ptr<Event> uploaded;
  };
  // Steps of equal shape enqueue the same work, which is recorded once the shape has occurred several times.
  struct Shape {
    int64_t buffer, tokens, length_bound, top_k;
    bool adjusts, counts;
    Part part;
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    int64_t times = 0;  // how often the shape has occurred
    std::unique_ptr<Recording> work;
  };

  int64_t head_rows() const { return links_.last() ? std::min(plan_.result_rows(), kHeadRows) : 0; }
  const StepBuffer& at(int buffer) const { return buffers_[static_cast<size_t>(buffer)]; }
  // The rows of a step with these numbers of tokens and tails; 0 tails: all tokens are kept.
  BatchRows rows(const StepBuffer& buffer, int64_t tokens, int64_t tails) const;
  void compute(const Layout& layout, const StepBuffer& buffer);
  void allocate_adjustments(int64_t rows);
  void copy_to_device(const StepBuffer& buffer, std::byte* device, const std::byte* host, size_t bytes);
  void upload_edits(const StepArrays& arrays, const StepBuffer& buffer);
  void count_prefixes(const StepArrays& arrays, const StepBuffer& buffer);
  void enqueue(Part part, const StepArrays& arrays, int buffer, int64_t step,
               const std::function<void()>& wait_until_computed);
  Tensor drawn_ids() const;
  void give_results(const Layout& layout, const Tensor& residual, const StepBuffer& buffer);
  void draw(const Layout& layout, const Tensor& residual, const StepResults& results);
  void score(const Layout& layout, const Tensor& residual, const StepResults& results);
  Recording* recording_of(const Shape& shape, const Layout& layout, const StepBuffer& buffer,
                          const std::function<void()>& wait_until_computed);

  const StageLinks links_;
  const GenerationPlan plan_;
  Caches caches_;
  ModelRunner runner_;
  std::array<StepBuffer, kBuffers> buffers_;
  // The stream that uploads the arrays of steps. Null on CPUs, where a separate thread would cost more than the copy.
  std::unique_ptr<Stream> uploads_;
  Buffer results_;   // device, last stage: StepResults
  Buffer prefixes_;  // device, last stage: StepArrays::prefixes, if rules count and prefixes are kept
  // Last stage, [kHeadRows, vocab] fp32: logits and, if a rule may adjust them, those that tokens are drawn from.
  struct LogitRows {
    Tensor model, adjusted;
  } logits_;
  Adjustments adjustments_;             // last stage, if a rule may need them
  std::unique_ptr<DraftMaker> drafts_;  // last stage, with a DSpark drafter
  std::map<Shape, Recorded> recordings_;
};

}  // namespace lfm2
