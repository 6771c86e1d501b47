// The time that a micro-batch takes on a stage, measured before the run or estimated, and the size of micro-batch that
// follows from it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "stage/model/stage.h"

namespace lfm2 {

// A micro-batch takes fixed + per_token · tokens seconds.
struct StageTime {
  double fixed = 0, per_token = 0;
  double seconds(double tokens) const { return fixed + per_token * tokens; }
};

// Times the stage's layers on random hidden states of two sizes, in samples of `length` tokens. `tail_share` scales the
// result where the job needs only that share of the layers' work. Leaves nothing allocated.
StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, int64_t length, double tail_share);

// The size of micro-batch in tokens, between `length` and `largest`, for which a job of `tokens` tokens takes least
// time over these stages. Every micro-batch passes the slowest stage, and the pipeline fills and drains once; copying
// results to the host counts as one more stage.
int64_t best_target_tokens(const std::vector<StageTime>& stages, int64_t tokens, int64_t length, int64_t largest);

// An estimate of the seconds that each layer takes for a micro-batch of `tokens` tokens, of which `kept` go on behind
// the last attention layer (0: all). Only ratios between layers matter, because the estimate decides where the stages
// are cut.
std::vector<double> estimate_layer_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept);

// An estimate of the seconds that the LM head takes for a few rows: the time of reading its weights.
double estimate_head_seconds(const ModelConfig& config, DType compute);

}  // namespace lfm2
