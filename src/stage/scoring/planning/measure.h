// Measures the costs of a stage's layers on the device that computes them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/backend.h"
#include "stage/model/stage.h"
#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// The shape of the job's samples. Of a sample longer than a timed micro-batch, a part from its middle is timed, over
// the caches.
struct TimedSamples {
  int64_t length = 1;
  bool last_positions = false;  // results are of last positions: the stage with the last attention layer prunes tokens
  // Set for generation: each token of a step belongs to a different sequence, after this number of cached tokens.
  std::optional<int64_t> cached = {};
};

// Times the stage's layers on random hidden states of two sizes. A stage after the pruning is also timed on all tokens.
// Frees all memory that it allocates.
StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                             TimedSizes sizes = {});
// Times the final norm and LM head of the last stage on rows instead of tokens.
StageTime measure_head_time(Backend& backend, const Stage& stage, DType compute);

// The same for several ascending sizes. A size below the samples' length is a part from the middle of a sample, and a
// number of sequences has the cached tokens that fit into the timing's caches. The device works for `warm_seconds`
// before, so that its clock is that of a long job.
CostCurve measure_stage_curve(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                              std::span<const int64_t> sizes, double warm_seconds = 0);
// The most sequences that are timed with this number of cached tokens each.
int64_t max_timed_sequences(int64_t cached);
CostCurve measure_head_curve(Backend& backend, const Stage& stage, DType compute, std::span<const int64_t> rows);

}  // namespace lfm2
