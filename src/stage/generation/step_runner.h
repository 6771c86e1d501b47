// Computes steps on one stage. It owns the stage's caches and buffers, sends the arrays of a step to the device, runs
// the forward, and draws tokens on the last stage. Steps are computed in their order, so one may be enqueued while
// another runs, and begin with what that one draws.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/channel.h"
#include "stage/generation/scheduler.h"
#include "stage/pipeline/model_runner.h"

namespace lfm2 {

// The sizes of a generation, the same for all its requests.
struct GenerationPlan {
  int64_t longest = 0;  // cached positions of the longest sequence
  int64_t top_k = 0;    // --top-logprobs: how many log-probabilities come with each token
  // True: results that requests ask for return only to the first stage, with their tokens, and top logprobs are
  // computed only in steps whose requests ask for them (`Request::num_top_logprobs`). False: every completion has its
  // results.
  bool live = false;
  // Whether any request may ask for this: see Request.
  bool prompt_log_probs = false, hidden = false;
  // What rules that adjust logits may need: counts of tokens, and the largest number of edits of a request.
  bool counts = false;
  int64_t edits = 0;
  ScheduleLimits limits;
  double times_interval = 0;  // seconds after which the source of requests is told the stages' times again; 0: never

  int64_t max_tokens() const { return limits.max_sequences + limits.prompt_tokens; }  // tokens of the largest step
  bool adjusts() const { return counts || edits > 0; }
  // Bytes of the tokens of the prefix cache that rules may count in one step.
  uint64_t prefix_bytes() const;
  // Tokens of each sequence's part of a step that continue after the last attention layer: see TokenPruning; 0: all.
  int64_t tail_length(const ModelConfig& config) const {
    return limits.caches.keeps_prefixes ? 0 : lfm2::tail_length(config);
  }
  // Bytes for the tails of steps on a stage with these layers, where they prune tokens.
  uint64_t tail_bytes(const ModelConfig& config, LayerRange layers, DType compute) const;
  int64_t max_scored() const { return prompt_log_probs ? limits.prompt_tokens : 0; }  // tokens of a step
  int64_t max_hidden() const { return hidden ? limits.prompt_tokens : 0; }            // rows of a step
  // Rows of a step that go through the final norm.
  int64_t result_rows() const {
    return prompt_log_probs || hidden ? std::max(limits.max_sequences, limits.prompt_tokens) : limits.max_sequences;
  }
  // Bytes that the last stage keeps for adjusting logits.
  uint64_t adjustment_bytes(int64_t vocab) const;
  int64_t table_width() const { return pages_for(longest, limits.caches.page_size); }
};

// How much a step gives.
struct ResultShape {
  int64_t draws = 0, scored = 0, hidden = 0;  // tokens that are drawn; tokens of prompts; hidden states
  int64_t top_k = 0;                          // log-probabilities beside each token
};

// The results of a step.
struct StepResults {
  struct Tokens {
    Tensor ids, log_probs;          // [tokens]
    Tensor top_ids, top_log_probs;  // [tokens, top_k]; empty where top_k is 0
  };
  Tokens drawn;
  Tokens scored;  // of prompts; instead of ids: 1 for a top-1 token, else 0
  size_t bytes = 0;
  Tensor hidden = {};  // [hidden states, hidden] act; not in the piece of memory that holds the others
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
  Event& computed(int buffer) const { return *at(buffer).computed; }
  bool all_computed() const { return computed(0).done() && computed(1).done(); }
  // Copies the arrays of a step to the device, into the buffer of a step that is computed. `ids` are the step's tokens
  // on the first stage, and empty on the others.
  void upload(const StepArrays& arrays, const std::vector<int32_t>& ids, int buffer);
  // Enqueues the step whose arrays were uploaded last. Work that comes often is recorded. Before recordings are thrown
  // away, `wait_until_computed` is called, which returns when no enqueued step still runs.
  void enqueue(const StepArrays& arrays, int buffer, int64_t step, const std::function<void()>& wait_until_computed);
  ResultShape result_shape(const StepArrays& arrays) const;
  // Last stage: the results in `buffer`, whose step must be computed.
  StepResults results(int buffer, const ResultShape& shape) const;

  uint64_t activation_bytes() const { return runner_.bytes() + result_bytes_; }
  uint64_t cache_bytes() const { return caches_.bytes(); }

 private:
  // A step whose arrays lie on the device.
  struct Layout : BatchTensors {
    ResultShape results;
    bool adjusts = false, counts = false;  // whether a token is drawn from adjusted logits; whether any is counted
    // Whether a token is drawn after every row, each of which is its sequence's only one.
    bool decodes() const { return batch.singles == batch.tokens && results.draws == batch.tokens; }
  };
  struct StepBuffer : BatchBuffer {
    BatchTensors uploaded_arrays;  // on the device
    Buffer edits;                  // host, last stage: the edits of sequences that begin, on their way to the device
    Buffer prefixes;               // host, last stage: StepArrays::prefixes, on their way to the device
    Buffer results;                // host, last stage: StepResults
    Buffer hidden;                 // host, last stage: hidden states for the results
    std::unique_ptr<Event> uploaded;
  };
  // Steps of equal shape enqueue the same work, which is recorded once the shape has come several times.
  struct Shape {
    int64_t buffer, tokens, length_bound, top_k;
    bool adjusts, counts;
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    int64_t times = 0;  // how often the shape has come
    std::unique_ptr<Recording> work;
  };

  int64_t head_rows() const { return links_.last() ? std::min(plan_.result_rows(), kHeadRows) : 0; }
  const StepBuffer& at(int buffer) const { return buffers_[static_cast<size_t>(buffer)]; }
  // Of a step with these numbers of tokens and of tails; no tails: all tokens are kept.
  BatchRows rows(const StepBuffer& buffer, int64_t tokens, int64_t tails) const;
  void compute(const Layout& layout, const StepBuffer& buffer);
  void allocate_adjustments(int64_t rows);
  void upload_edits(const StepArrays& arrays, const StepBuffer& buffer);
  void count_prefixes(const StepArrays& arrays, const StepBuffer& buffer);
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
  uint64_t result_bytes_ = 0;  // of results_ and prefixes_
  std::array<StepBuffer, kBuffers> buffers_;
  // Brings the arrays of steps to the device. Null where the host's memory is the device's: there, a further thread
  // would take longer than the copy.
  std::unique_ptr<Stream> uploads_;
  Buffer results_;           // device, last stage: StepResults
  Buffer prefixes_;          // device, last stage: StepArrays::prefixes, where rules count and prefixes are kept
  Tensor logits_;            // [kHeadRows, vocab] fp32, last stage
  Tensor adjusted_;          // the same, where a rule may adjust logits
  Adjustments adjustments_;  // last stage, where a rule may need them
  std::map<Shape, Recorded> recordings_;
};

}  // namespace lfm2
