// How the samples of a pipeline are cut into micro-batches. The pipeline's first stage holds the samples and cuts them;
// the other stages know the sizes, and learn each micro-batch's lengths when it comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stage/io/sample_offsets.h"

namespace lfm2 {

struct MicroBatch {
  int64_t first_sample = 0, samples = 0;
  int64_t first_token = 0, tokens = 0;
};

// What every stage of a pipeline knows of its samples.
struct BatchPlan {
  int64_t first_sample = 0, first_token = 0;  // of these samples in the job: a replica has a part of them
  int64_t samples = 0, tokens = 0;
  int64_t micro_batches = 0;
  int64_t max_tokens = 0;   // of one micro-batch
  int64_t max_samples = 0;  // of one micro-batch
};

// The samples of a pipeline, on its first stage. Samples, tokens and micro-batches are counted from its first ones.
class MicroBatches {
 public:
  // The samples in `range` of `offsets`, at least one, in micro-batches of `micro_batch` samples, or, where that is 0,
  // of samples up to about `target_tokens` tokens. `offsets` and `ids`, the tokens from the range's first one on, must
  // outlive this; a plan alone needs no ids.
  MicroBatches(const SampleOffsets& offsets, std::span<const int32_t> ids, SampleRange range, int64_t micro_batch,
               int64_t target_tokens);
  MicroBatches(SampleOffsets&&, std::span<const int32_t>, SampleRange, int64_t, int64_t) = delete;

  const BatchPlan& plan() const { return plan_; }
  MicroBatch operator[](int64_t index) const;
  std::span<const int32_t> ids(int64_t index) const;  // [tokens of the micro-batch]
  // What the other stages are told of a micro-batch: {samples, length} where all are equally long, otherwise
  // {samples, length, length, ...}.
  std::vector<int32_t> lengths_message(int64_t index) const;
  uint64_t memory_bytes() const { return ends_.memory_bytes(); }

 private:
  int64_t offset(int64_t sample) const { return (*offsets_)[range_.first + sample] - plan_.first_token; }
  int64_t length(int64_t sample) const { return offsets_->length(range_.first + sample); }

  const SampleOffsets* offsets_;
  std::span<const int32_t> ids_;
  SampleRange range_;
  BatchPlan plan_;
  SampleOffsets ends_;  // [micro-batches + 1]: the first sample of each
};

// The lengths in tokens that a lengths_message tells. Error(kSoftware) where it is none.
std::vector<int32_t> lengths_of_message(std::span<const int32_t> words);

// The samples of one of `replicas` pipelines, as equal in tokens as whole samples allow; every pipeline gets some.
// Error(kUsage) where there are fewer samples than pipelines.
SampleRange replica_samples(const SampleOffsets& offsets, int64_t replicas, int64_t replica);

// Tokens of a micro-batch beyond which the matrix products are no faster, while the pipeline fills more slowly.
inline constexpr int64_t kMaxCpuTarget = 512;
inline constexpr int64_t kMaxCudaTarget = 4096;
inline constexpr int64_t kMaxMeasuredTarget = 8192;  // where the cost was measured

// Tokens per micro-batch that keep `stages` stages busy (the fill costs at most a sixth of the steady time) without
// making the matrix products needlessly small: at most `largest` tokens.
int64_t choose_target_tokens(int64_t total_tokens, int64_t stages, int64_t largest);

}  // namespace lfm2
