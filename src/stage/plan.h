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
  int64_t first_sample = 0, first_token = 0;  // of these samples in the job: a replica has a part of them
  std::vector<int64_t> offsets;               // [samples + 1]: first token of each sample
  std::vector<MicroBatch> items;              // in the order of the samples
  int64_t max_tokens = 0;                     // of one item
  int64_t max_samples = 0;                    // of one item
  int64_t max_length = 0;                     // of one sample

  int64_t samples() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t tokens() const { return offsets.back(); }
  int64_t length(int64_t sample) const {
    return offsets[static_cast<size_t>(sample + 1)] - offsets[static_cast<size_t>(sample)];
  }
};

// The samples of one of `replicas` pipelines, as equal in tokens as whole samples allow; every pipeline gets some.
// Error(kUsage) where there are fewer samples than pipelines.
struct SampleRange {
  int64_t first = 0, count = 0;
};
SampleRange replica_samples(const std::vector<int64_t>& offsets, int64_t replicas, int64_t replica);

// `micro_batch` samples each, or, where it is 0, samples up to about `target_tokens` tokens. `offsets` of the
// whole job, at least one sample in `range`.
BatchPlan make_plan(const std::vector<int64_t>& offsets, SampleRange range, int64_t micro_batch, int64_t target_tokens);

// Tokens of a micro-batch beyond which the matrix products are no faster, while the pipeline fills more slowly.
inline constexpr int64_t kLargestCpuTarget = 512;
inline constexpr int64_t kLargestCudaTarget = 4096;
inline constexpr int64_t kLargestMeasuredTarget = 8192;  // where the cost was measured

// Tokens per micro-batch that keep `stages` stages busy (the fill costs at most a sixth of the steady time) without
// making the matrix products needlessly small: at most `largest` tokens.
int64_t choose_target_tokens(int64_t total_tokens, int64_t stages, int64_t largest);

}  // namespace lfm2
