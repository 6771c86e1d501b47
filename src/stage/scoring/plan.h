// How the samples of a job are cut into micro-batches: pure, made on rank 0 and known to every rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stage/io/sample_offsets.h"

namespace lfm2 {

struct MicroBatch {
  int64_t first_sample = 0, samples = 0;
  int64_t first_token = 0, tokens = 0;
};

// Samples, tokens and micro-batches are counted from the first ones of the range.
struct BatchPlan {
  int64_t first_sample = 0, first_token = 0;  // of these samples in the job: a replica has a part of them
  int64_t samples = 0, tokens = 0;
  int64_t max_tokens = 0;   // of one micro-batch
  int64_t max_samples = 0;  // of one micro-batch
  int64_t max_length = 0;   // of one sample

  const SampleOffsets* job_offsets = nullptr;  // must outlive the plan
  SampleOffsets item_offsets;                  // [micro-batches + 1]: the first sample of each

  int64_t items() const { return item_offsets.samples(); }
  MicroBatch item(int64_t index) const {
    const int64_t begin = item_offsets[index], end = item_offsets[index + 1];
    return {begin, end - begin, offset(begin), offset(end) - offset(begin)};
  }
  int64_t offset(int64_t sample) const { return (*job_offsets)[first_sample + sample] - first_token; }
  int64_t length(int64_t sample) const { return job_offsets->length(first_sample + sample); }
};

// The samples of one of `replicas` pipelines, as equal in tokens as whole samples allow; every pipeline gets some.
// Error(kUsage) where there are fewer samples than pipelines.
SampleRange replica_samples(const SampleOffsets& offsets, int64_t replicas, int64_t replica);

// `micro_batch` samples each, or, where it is 0, samples up to about `target_tokens` tokens. `offsets` of the
// whole job, at least one sample in `range`.
BatchPlan make_plan(const SampleOffsets& offsets, SampleRange range, int64_t micro_batch, int64_t target_tokens);
BatchPlan make_plan(SampleOffsets&& offsets, SampleRange, int64_t, int64_t) = delete;

// Tokens of a micro-batch beyond which the matrix products are no faster, while the pipeline fills more slowly.
inline constexpr int64_t kLargestCpuTarget = 512;
inline constexpr int64_t kLargestCudaTarget = 4096;
inline constexpr int64_t kLargestMeasuredTarget = 8192;  // where the cost was measured

// Tokens per micro-batch that keep `stages` stages busy (the fill costs at most a sixth of the steady time) without
// making the matrix products needlessly small: at most `largest` tokens.
int64_t choose_target_tokens(int64_t total_tokens, int64_t stages, int64_t largest);

}  // namespace lfm2
