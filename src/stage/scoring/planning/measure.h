// Measures the costs of a stage's layers on the device that computes them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

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

// One block of each kind in the model (token mixers, among them the one that prunes tokens, and feed-forwards), and the
// kind of every block.
struct BlockKinds {
  std::vector<int64_t> examples;
  std::vector<size_t> kind_of;  // [blocks]
};
BlockKinds block_kinds(const ModelConfig& config);

}  // namespace lfm2
