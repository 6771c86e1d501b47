// The sizes of a generation, common to all its requests, and the memory that they need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stage/generation/draft_maker.h"
#include "stage/generation/scheduler.h"
#include "stage/pipeline/model_runner.h"

namespace lfm2 {

struct GenerationPlan {
  int64_t longest = 0;  // cached positions of the longest sequence
  int64_t top_k = 0;    // --top-logprobs: number of log-probabilities for each token
  // True for a server and a chat: results of a request return with its tokens, to the first stage only. Top logprobs
  // are then computed only in steps whose requests ask for them (`Request::num_top_logprobs`). False: each completion
  // contains its results.
  bool live = false;
  // Whether any request may ask for these: see Request.
  bool prompt_log_probs = false, hidden = false;
  // Needs of rules that adjust logits: whether tokens are counted, and the largest number of edits of a request.
  bool counts = false;
  int64_t edits = 0;
  bool constrained = false;  // whether draws may have masks
  ScheduleLimits limits;
  DrafterFactory drafters = {};  // first stage; empty: no sequence drafts
  // Drafts by a DSpark drafter: the layers whose hidden states it reads; and, on the last stage, the drafter.
  std::vector<int64_t> taps = {};
  const Dspark* dspark = nullptr;
  double times_interval = 0;  // seconds between reports of the stages' times to the source of requests; 0: never

  int64_t max_tokens() const { return limits.max_rows() + limits.prompt_tokens; }  // of the largest step
  bool adjusts() const { return counts || edits > 0 || constrained; }
  // Bytes for the ids of cached prefixes and right drafts that rules count in one step.
  uint64_t prefix_bytes() const;
  // Tokens of each sequence in a step that continue after the last attention layer (TokenPruning); 0: all.
  int64_t tail_length(const ModelConfig& config) const {
    return limits.caches.keeps_prefixes || !taps.empty() ? 0 : lfm2::tail_length(config);
  }
  // How many taps the stages before this one keep, and how many are kept after it. All travel to the last stage.
  int64_t taps_before(LayerRange layers) const {
    return std::ranges::count_if(taps, [&](int64_t tap) { return tap < layers.first; });
  }
  int64_t taps_after(LayerRange layers) const {
    return taps_before(layers) + std::ranges::count_if(taps, [&](int64_t tap) { return layers.has_feed_forward(tap); });
  }
  uint64_t tap_bytes(const ModelConfig& config, LayerRange layers, DType compute) const {
    return kBuffers * Tensor(nullptr, compute, {taps_after(layers) * max_tokens(), config.hidden}).bytes();
  }
  DraftMakerSizes draft_sizes() const {
    return {.caches = limits.caches,
            .longest = longest,
            .tokens = max_tokens(),
            .texts = std::min(limits.max_sequences, limits.draft_rows)};
  }
  int64_t tail_rows(const ModelConfig& config, LayerRange layers) const;  // the most kept tokens of a step
  // Bytes for the tails of steps on a stage with these layers; 0 if they do not prune tokens.
  uint64_t tail_bytes(const ModelConfig& config, LayerRange layers, DType compute) const;
  int64_t max_scored() const { return prompt_log_probs ? limits.prompt_tokens : 0; }  // tokens of a step
  int64_t max_hidden() const { return hidden ? limits.prompt_tokens : 0; }            // rows of a step
  // Rows of a step that go through the final norm.
  int64_t result_rows() const {
    return prompt_log_probs || hidden ? std::max(limits.max_rows(), limits.prompt_tokens) : limits.max_rows();
  }
  size_t array_bytes() const;  // of the arrays of the largest step
  // Bytes on the last stage for adjusting logits.
  uint64_t adjustment_bytes(int64_t vocab) const;
  int64_t table_width() const { return pages_for(longest, limits.caches.page_size); }
};

}  // namespace lfm2
