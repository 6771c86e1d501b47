// What a micro-batch costs a stage, measured at start, and the size of micro-batch that follows from it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "stage/model/stage.h"

namespace lfm2 {

// Seconds for a micro-batch of `tokens`: fixed + per_token · tokens.
struct StageTime {
  double fixed = 0, per_token = 0;
  double seconds(double tokens) const { return fixed + per_token * tokens; }
};

// Runs the stage's layers on random hidden states of two sizes, samples of `length` tokens. `tail_share` scales the
// result where the job needs less than all of the layers' work. Leaves nothing allocated.
StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, int64_t length, double tail_share);

// Tokens of a micro-batch for which the job of `tokens` takes least time over these stages: every micro-batch passes
// the slowest stage, and the pipeline and the way of the results to the host fill and drain once. Between `length` and
// `largest`.
int64_t best_target_tokens(const std::vector<StageTime>& stages, int64_t tokens, int64_t length, int64_t largest);

// An estimate, for cuts only their ratios matter: seconds of each layer for a micro-batch of `tokens` tokens, of which
// `kept` go on behind the last attention layer (0: all).
std::vector<double> estimate_layer_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept);

// The same of the LM head for a few rows: reading it.
double estimate_head_seconds(const ModelConfig& config, DType compute);

}  // namespace lfm2
