// Cuts the samples of a job into micro-batches. Rank 0 has the samples and cuts them. All other ranks know the sizes of
// the plan, and receive the content of each micro-batch before they compute it.
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

// Whole samples, or a part of a long one. Samples, tokens and scored tokens are counted from the job's first ones.
struct MicroBatch {
  int64_t first_sample = 0, samples = 0;  // `samples`: number of samples that end in it
  int64_t first_token = 0, tokens = 0;
  int64_t first_scored = 0, scored = 0;  // --score: scored tokens; each belongs to the token before it
  // Of a part: the number of earlier tokens of the sample, and of all its tokens. Both 0: whole samples.
  int64_t past = 0, whole = 0;
  bool is_part() const { return whole > 0; }
  bool ends_samples() const { return past + tokens == whole || !is_part(); }
};
void for_each_field(MaybeConst<MicroBatch> auto& one, const auto& each) {  // see base/words.h
  each(one.first_sample, one.samples, one.first_token, one.tokens, one.first_scored, one.scored, one.past, one.whole);
}

// On a single rank, the samples of the last micro-batch go through the layers from `layer` on in two parts, so that
// results of the first part are emitted while the second is computed. The second part has `samples` samples; 0: no
// split. Two separate micro-batches would read the weights of all layers once more.
struct LateParts {
  int64_t layer = 0, samples = 0;
};

// The sizes of a job's micro-batches, known to every rank.
struct BatchPlan {
  int64_t samples = 0, tokens = 0;
  int64_t micro_batches = 0;
  int64_t max_tokens = 0;        // tokens of the largest micro-batch
  int64_t max_samples = 0;       // samples of the largest micro-batch
  int64_t longest_in_parts = 0;  // tokens of the longest sample that is cut into parts; 0: none is
  int64_t max_scored = 0;        // --score: scored tokens of the micro-batch that has the most
  LateParts late;

  int64_t max_rows(const ResultKind& kind) const;  // the most rows of results of a micro-batch
};
void for_each_field(MaybeConst<BatchPlan> auto& plan, const auto& each) {  // see base/words.h
  each(plan.samples, plan.tokens, plan.micro_batches, plan.max_tokens, plan.max_samples, plan.longest_in_parts,
       plan.max_scored, plan.late.layer, plan.late.samples);
}

// What the ranks of a pipeline need to compute a micro-batch. First stages get it from rank 0, and pass it on without
// the ids.
struct MicroBatchContent {
  MicroBatch samples;
  std::vector<int32_t> lengths;  // [samples], in tokens; of a part, its own length
  // --score: the number of scored tokens at the end of each sample, and the ids of all scored tokens.
  std::vector<int32_t> scored, targets;
  std::vector<int32_t> ids;  // [tokens]
};
void for_each_field(MaybeConst<MicroBatchContent> auto& content, const auto& each) {
  each(content.samples, content.lengths, content.scored, content.targets, content.ids);
}

// The micro-batches of a job, on rank 0.
class MicroBatches {
 public:
  // The size of micro-batches: `samples` samples or, if that is 0, the number that fits into `tokens` tokens. A longer
  // sample is a separate micro-batch, or is cut into parts of about `part` tokens (0: `tokens`) and at least
  // `smallest_part` (0: no sample is cut). Parts have equal costs. A token costs more the more tokens precede it, so
  // the first part is the largest. `growth`: the cost that each preceding token adds, as a share of the cost of a
  // sample's first token. If `replicas` share the micro-batches, each gets equally many tokens, and in a long job the
  // last ones are smaller, down to an eighth, so that all replicas end at about the same time.
  struct Size {
    int64_t samples = 0, tokens = 0, smallest_part = 0, part = 0;
    double growth = 0;
    int64_t replicas = 1;
  };
  // Cuts the samples of `offsets`, at least one. `ids` may be empty if only the plan is used. `scored` counts the
  // scored tokens of the samples (--score). All of them must outlive this.
  MicroBatches(const SampleOffsets& offsets, std::span<const int32_t> ids, Size size,
               const SampleOffsets* scored = nullptr);
  MicroBatches(SampleOffsets&&, std::span<const int32_t>, Size, const SampleOffsets* = nullptr) = delete;

  // For a sample of `length` tokens: the number of parts, the maximum number of parts, and the tokens of the largest of
  // `parts` parts.
  static int64_t parts(int64_t length, const Size& size);
  static int64_t max_parts(int64_t length, const Size& size);
  static int64_t largest_part(int64_t length, const Size& size, int64_t parts);

  const BatchPlan& plan() const { return plan_; }
  MicroBatch operator[](int64_t index) const;
  MicroBatchContent content(int64_t index) const;
  uint64_t memory_bytes() const { return ends_.memory_bytes() + token_ends_.memory_bytes(); }

 private:
  void add(const MicroBatch& one);
  void find_scored(MicroBatch& one) const;

  const SampleOffsets* offsets_;
  const SampleOffsets* scored_;
  std::span<const int32_t> ids_;
  BatchPlan plan_;
  // [micro-batches + 1]: for each, the first sample that has not ended before it, and its first token.
  SampleOffsets ends_, token_ends_;
};

// The most tokens of a micro-batch on CPUs: with more, matrix products are no faster, and the pipeline fills more
// slowly.
inline constexpr int64_t kMaxCpuTarget = 512;
inline constexpr int64_t kMaxCudaTarget = 4096;
// The limits if stages were timed, so that the gain is measured. The last tile of each expert's rows is half empty on
// average, so larger micro-batches waste less. In fp32 only smaller sizes are timed. kMaxFewRowsTarget applies if the
// rows of results of a micro-batch fit into the result buffers.
inline constexpr int64_t kMaxMeasuredTarget = 65536, kMaxMeasuredFp32Target = 16384, kMaxFewRowsTarget = 131072;
// The limit among the three for a job whose samples have `length` tokens on average.
int64_t max_measured_target(DType compute, const ResultKind& results, int64_t length);
// The fewest tokens of a part of a long sample, because small matrix products are slow.
inline constexpr int64_t kMinCpuPart = 64, kMinCudaPart = 512;
// The approximate maximum of tokens of a part on CPUs. Each further part attends to more positions and takes longer, so
// stages stay balanced only if neighbouring parts differ little.
inline constexpr int64_t kMaxCpuPart = 160;

// The size of micro-batches in tokens, at most `largest`: the largest with which filling the pipeline costs at most a
// sixth of the steady time.
int64_t choose_target_tokens(int64_t total_tokens, PipelineShape shape, int64_t largest);

}  // namespace lfm2
