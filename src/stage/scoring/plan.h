// Cuts the samples of a pipeline into micro-batches. The pipeline's first stage holds the samples and cuts them. The
// other stages know the sizes of the plan, and learn the samples' lengths with each micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/words.h"
#include "stage/io/results.h"
#include "stage/io/samples/sample_offsets.h"
#include "stage/pipeline/schedule.h"

namespace lfm2 {

// Whole samples, or a part of one that is long.
struct MicroBatch {
  int64_t first_sample = 0, samples = 0;  // `samples`: those that end in it
  int64_t first_token = 0, tokens = 0;
  int64_t first_scored = 0, scored = 0;  // --score: scored tokens, each of which belongs to the token before it
  // Of a part: how many tokens of the sample went before, and how many the sample has. 0: there are whole samples.
  int64_t past = 0, whole = 0;
  bool is_part() const { return whole > 0; }
  bool ends_samples() const { return past + tokens == whole || !is_part(); }
};

// Where one rank has all layers: the samples of the last micro-batch go through the layers from `layer` on in two
// parts, so that results of the first part are emitted while the second is computed. The second part has `samples`
// samples; 0: all go in one part. Separate micro-batches would read the weights of all layers once more.
struct LateParts {
  int64_t layer = 0, samples = 0;
};

// The sizes that every stage of a pipeline knows of its samples.
struct BatchPlan {
  int64_t first_sample = 0, first_token = 0;  // where the pipeline's samples begin in the job; 0 without replicas
  int64_t samples = 0, tokens = 0;
  int64_t micro_batches = 0;
  int64_t max_tokens = 0;        // tokens of the largest micro-batch
  int64_t max_samples = 0;       // samples of the largest micro-batch
  int64_t longest_in_parts = 0;  // tokens of the longest sample that goes through the stages in parts; 0: none does
  // --score: scored tokens before the pipeline's, and the most in a micro-batch.
  int64_t first_scored = 0, max_scored = 0;
  LateParts late;

  int64_t max_rows(const ResultKind& kind) const;  // the most rows of results of a micro-batch
};
void for_each_field(MaybeConst<BatchPlan> auto& plan, const auto& each) {  // see base/words.h
  each(plan.first_sample, plan.first_token, plan.samples, plan.tokens, plan.micro_batches, plan.max_tokens,
       plan.max_samples, plan.longest_in_parts, plan.first_scored, plan.max_scored, plan.late.layer, plan.late.samples);
}

// What the first stage tells the others of a micro-batch.
struct MicroBatchContent {
  std::vector<int32_t> lengths;  // [samples], in tokens
  // --score: how many tokens of each sample, its last ones, are scored, and the ids of all scored tokens.
  std::vector<int32_t> scored, targets;
  int64_t past = 0, whole = 0;  // see MicroBatch; the length of a part is the one in `lengths`
};

// The micro-batches of a pipeline, on its first stage. Samples and tokens are counted from the pipeline's first ones.
class MicroBatches {
 public:
  // How large micro-batches are: `samples` samples or, where that is 0, the number that fits into `tokens` tokens. A
  // longer sample is a micro-batch by itself, or it is cut into parts of about `part` tokens (0: `tokens`), none of
  // which has fewer than `smallest_part` (0: no sample is cut). Parts cost alike: where a token costs more the more
  // tokens precede it, the first part is the largest. `growth`: what each preceding token adds, as a share of the cost
  // of a sample's first token.
  struct Size {
    int64_t samples = 0, tokens = 0, smallest_part = 0, part = 0;
    double growth = 0;
  };
  // Cuts the samples in `range` of `offsets`, at least one. `ids` are the tokens of the range; a caller that only asks
  // for the plan needs none. `scored` counts the scored tokens of the samples (--score). All of them must outlive this.
  MicroBatches(const SampleOffsets& offsets, std::span<const int32_t> ids, SampleRange range, Size size,
               const SampleOffsets* scored = nullptr);
  MicroBatches(SampleOffsets&&, std::span<const int32_t>, SampleRange, Size, const SampleOffsets* = nullptr) = delete;

  // The number of micro-batches that a sample of `length` tokens is cut into, the most that it may be cut into, and the
  // tokens of the largest of `parts` parts.
  static int64_t parts(int64_t length, const Size& size);
  static int64_t max_parts(int64_t length, const Size& size);
  static int64_t largest_part(int64_t length, const Size& size, int64_t parts);

  const BatchPlan& plan() const { return plan_; }
  MicroBatch operator[](int64_t index) const;
  std::span<const int32_t> ids(int64_t index) const;  // [tokens of the micro-batch]
  // The message that tells the other stages of a micro-batch: {samples, length} where all samples are equally long,
  // otherwise {samples, length, length, ...}. With scored tokens, {samples, length, ..., scored, ..., target, ...}, as
  // in MicroBatchContent. Of a part, {0, past, whole, length} and {0, past, whole, length, target, ...}.
  std::vector<int32_t> message(int64_t index) const;
  uint64_t memory_bytes() const { return ends_.memory_bytes() + token_ends_.memory_bytes(); }

 private:
  int64_t offset(int64_t sample) const { return (*offsets_)[range_.first + sample] - plan_.first_token; }
  int64_t length(int64_t sample) const { return offsets_->length(range_.first + sample); }

  int64_t scored_of(int64_t sample) const { return scored_->length(range_.first + sample); }
  void add(const MicroBatch& one);
  void find_scored(MicroBatch& one) const;
  std::vector<int32_t> part_message(const MicroBatch& one) const;
  std::vector<int32_t> scoring_message(int64_t index) const;

  const SampleOffsets* offsets_;
  const SampleOffsets* scored_;
  std::span<const int32_t> ids_;
  SampleRange range_;
  BatchPlan plan_;
  // [micro-batches + 1]: the first sample of each that has not ended before, and the first token.
  SampleOffsets ends_, token_ends_;
};

// What such a message says. Error(kSoftware) where `words` is none.
MicroBatchContent content_of_message(std::span<const int32_t> words, bool scored);

// The samples of one of `replicas` pipelines. Pipelines get whole samples, at least one each, and as equally many
// tokens as that allows. Error(kUsage) where there are fewer samples than pipelines.
SampleRange replica_samples(const SampleOffsets& offsets, int64_t replicas, int64_t replica);

// Micro-batches of more tokens than these make the matrix products no faster, and the pipeline fills more slowly.
inline constexpr int64_t kMaxCpuTarget = 512;
inline constexpr int64_t kMaxCudaTarget = 4096;
// The limits where stages were timed, so that the choice is known to pay. The tiles of the experts' products are half
// empty at the end of each expert's rows, so larger micro-batches waste fewer of them. In fp32 only smaller ones are
// measured. kMaxFewRowsTarget: if micro-batches give no more rows of results than there are buffers for.
inline constexpr int64_t kMaxMeasuredTarget = 65536, kMaxMeasuredFp32Target = 16384, kMaxFewRowsTarget = 131072;
// The one of the three for a job whose samples have `length` tokens in the mean.
int64_t max_measured_target(DType compute, const ResultKind& results, int64_t length);
// The fewest tokens of a part of a long sample: fewer make the matrix products slow.
inline constexpr int64_t kMinCpuPart = 64, kMinCudaPart = 512;
// About the most tokens of a part on CPUs. Every further part sees more positions and takes longer, so the stages keep
// pace with each other only where neighbours differ little.
inline constexpr int64_t kMaxCpuPart = 160;

// The size of micro-batch in tokens, at most `largest`, that keeps the stages busy without making the matrix products
// smaller than needed: filling the pipeline costs at most a sixth of the steady time.
int64_t choose_target_tokens(int64_t total_tokens, PipelineShape shape, int64_t largest);

}  // namespace lfm2
