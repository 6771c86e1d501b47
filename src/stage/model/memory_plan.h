// What a stage costs, found by running its forward on operators that only count: memory before anything is loaded, work
// per token.
#pragma once

#include "kernels/dtype.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// Rows of logits that are computed and handed over at a time.
inline constexpr int64_t kHeadRows = 256;
// Buffers of that many rows: one computed, one copied or waiting, one with the consumers.
inline constexpr size_t kResultPieces = 3;

struct StageCost {
  uint64_t weight_bytes = 0;
  uint64_t residual_bytes = 0;  // the residual stream of one micro-batch
  uint64_t scratch_bytes = 0;   // activations inside a layer
  uint64_t result_bytes = 0;    // logits on their way out, last stage
  double layer_flops = 0;       // of one micro-batch through the layers (attention scores not counted)
  double head_flops = 0;        // of one row through the LM head, last stage

  // With so many micro-batches in the stage at a time.
  uint64_t total_bytes(uint64_t micro_batches) const {
    return weight_bytes + micro_batches * residual_bytes + scratch_bytes + result_bytes;
  }
};

// A micro-batch of `tokens` tokens; `compute` as in --dtype; `held` the type that weights are held in.
StageCost measure_stage(const ModelConfig& config, LayerRange layers, DType compute, DType held, int64_t tokens,
                        int64_t result_rows);

}  // namespace lfm2
