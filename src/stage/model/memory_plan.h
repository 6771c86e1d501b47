// Computes the memory and the work of a stage before anything is loaded, by running its forward on operators that only
// count.
#pragma once

#include <span>

#include "base/dtype.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// Rows of logits that are computed and passed on at a time.
inline constexpr int64_t kHeadRows = 256;
// The number of result buffers, of kHeadRows rows each, for micro-batches with up to `max_rows` rows of results. At
// least three: one is computed, one is copied or waits, one is read by the consumers. Up to kMaxResultRows rows, the
// buffers hold all rows of a micro-batch. With fewer buffers the device would wait for copies of earlier pieces,
// because the next micro-batch is submitted only after the last piece.
inline constexpr int64_t kMaxResultRows = 2048;
size_t result_pieces(int64_t max_rows);

struct StageMemory {
  uint64_t weight_bytes = 0;
  uint64_t residual_bytes = 0;  // the residual stream of one micro-batch
  uint64_t scratch_bytes = 0;   // activations inside a layer
  uint64_t result_bytes = 0;    // buffers for logits or hidden states on the last stage
  double layer_flops = 0;       // operations of one micro-batch in the layers, without attention scores
  double head_flops = 0;        // operations of one row in the LM head, on the last stage

  // The total if the stage holds `micro_batches` micro-batches at a time.
  uint64_t total_bytes(uint64_t micro_batches) const {
    return weight_bytes + micro_batches * residual_bytes + scratch_bytes + result_bytes;
  }
};

// The memory for micro-batches of `tokens` tokens. `compute` is the type of activations, `held` the type of weights on
// the device.
StageMemory stage_memory(const ModelConfig& config, LayerRange layers, DType compute, DType held, int64_t tokens,
                         int64_t result_rows);
// The memory of a rank with several pieces of layers, which share all memory except the weights.
StageMemory stage_memory(const ModelConfig& config, std::span<const LayerRange> pieces, DType compute, DType held,
                         int64_t tokens, int64_t result_rows);

}  // namespace lfm2
