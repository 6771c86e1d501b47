// The tokens that continue after the last attention, and in the last layer, where only last positions are wanted.
#pragma once

#include "kernels/ops.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// The part of a micro-batch, or of a step, that continues after the last attention where only last positions are
// wanted. After it, only short convolutions look at earlier tokens. So the last few tokens of each sample, or of each
// sequence's part of the step, are enough: only these get results of that attention, and go through its output
// projection and all layers after it, as a separate batch. The results of the first of these tokens are wrong, and
// nobody uses them. The states that the convolutions leave in the caches are right.
struct TokenPruning {
  Tensor rows;      // [tokens kept] int32: which rows of the residual stream are kept
  Tensor residual;  // [tokens kept, hidden] act: the residual stream from the cut on
  Batch batch;      // describes the kept tokens
};

// After the token mixer of the last layer, no token looks at another: only rows with a result go through its
// feed-forward.
struct OutputRows {
  Tensor rows;      // [outputs] int32: which rows of the residual stream, or of the kept tokens
  Tensor residual;  // [outputs, hidden] act: where the result goes
};

// Tokens of each sample that must be kept after the last attention to compute its last position; 0 where the model has
// no attention.
int64_t tail_length(const ModelConfig& config);
// The layer after whose token mixer the residual stream is cut down to the tail; -1 where the model has no attention.
int64_t last_attention_layer(const ModelConfig& config);
// Whether that layer is among these, or before all of them: a stage that prunes tokens, or starts with pruned ones.
bool prunes_tokens(const ModelConfig& config, LayerRange layers);
bool starts_pruned(const ModelConfig& config, LayerRange layers);

}  // namespace lfm2
