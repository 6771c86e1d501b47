// What a stage's layers cost, measured on the device that computes them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/backend.h"
#include "stage/model/stage.h"
#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// The job's samples. Of those longer than a timed micro-batch, a part from the middle is timed, over the caches.
struct TimedSamples {
  int64_t length = 1;
  bool last_positions = false;  // nothing else is wanted: the stage with the last attention layer prunes tokens
  // Set for generation: each token of a step is the next one of another sequence, after this number of cached tokens.
  std::optional<int64_t> cached = {};
};

// Times the stage's layers on random hidden states of two sizes. A stage after the pruning is timed on all
// tokens, too. Leaves nothing allocated.
StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                             TimedSizes sizes = {});
// Times the final norm and LM head of the last stage on rows instead of tokens.
StageTime measure_head_time(Backend& backend, const Stage& stage, DType compute);

// A block of each kind that the model has (token mixers, among them the one that prunes tokens, and feed-forwards),
// and for each block the number of its kind.
struct BlockKinds {
  std::vector<int64_t> examples;
  std::vector<size_t> kind_of;  // [blocks]
};
BlockKinds block_kinds(const ModelConfig& config);

}  // namespace lfm2
