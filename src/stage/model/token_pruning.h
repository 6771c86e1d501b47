// Which tokens continue after the last attention and in the last layer, if only last positions have results.
#pragma once

#include "kernels/ops.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// The part of a micro-batch or step that continues after the last attention, if only last positions have results. After
// that layer, only short convolutions read earlier tokens. So the last few tokens of each sample, or of each sequence
// in a step, are enough. Only these kept tokens get results of that attention, and go through its output projection and
// all later layers as a separate batch. The results of the first kept tokens are wrong, and nothing reads them. The
// convolution states in the caches are right.
struct TokenPruning {
  Tensor rows;      // [tokens kept] int32: which rows of the residual stream are kept
  Tensor residual;  // [tokens kept, hidden] act: the residual stream of the kept tokens
  Batch batch;      // describes the kept tokens
};

// After the token mixer of the last layer, tokens are independent. Only rows with a result go through its feed-forward.
struct OutputRows {
  Tensor rows;      // [outputs] int32: their rows in the residual stream, or in the kept tokens
  Tensor residual;  // [outputs, hidden] act: receives the result
};

// The number of tokens of each sample that must be kept after the last attention to compute its last position; 0 if the
// model has no attention.
int64_t tail_length(const ModelConfig& config);
// The layer whose token mixer is the last attention, after which tokens are pruned; -1 if the model has no attention.
int64_t last_attention_layer(const ModelConfig& config);
// Whether that layer is among `layers` (the stage prunes tokens), or before all of them (the stage starts with pruned
// tokens).
bool prunes_tokens(const ModelConfig& config, LayerRange layers);
bool starts_pruned(const ModelConfig& config, LayerRange layers);

}  // namespace lfm2
