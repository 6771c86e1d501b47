// How the samples of a job are cut into micro-batches: pure, made on rank 0 and known to every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lfm2 {

struct MicroBatch {
  int64_t first_sample = 0, samples = 0;
  int64_t first_token = 0, tokens = 0;
};

struct BatchPlan {
  std::vector<int64_t> offsets;   // [samples + 1]: first token of each sample
  std::vector<MicroBatch> items;  // in the order of the samples
  int64_t max_tokens = 0;         // of one item
  int64_t max_samples = 0;        // of one item
  int64_t max_length = 0;         // of one sample

  int64_t samples() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t tokens() const { return offsets.back(); }
  int64_t length(int64_t sample) const {
    return offsets[static_cast<size_t>(sample + 1)] - offsets[static_cast<size_t>(sample)];
  }
};

// `micro_batch` samples each, or, where it is 0, samples up to about `target_tokens` tokens. `offsets` as in BatchPlan,
// at least one sample.
BatchPlan make_plan(std::vector<int64_t> offsets, int64_t micro_batch, int64_t target_tokens);

// Tokens per micro-batch that keep `stages` stages busy (the fill costs at most a sixth of the steady time) without
// making the matrix products needlessly small: at most `largest` tokens.
int64_t choose_target_tokens(int64_t total_tokens, int64_t stages, int64_t largest);

}  // namespace lfm2
