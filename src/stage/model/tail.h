// What goes on behind the last attention layer, and in the last layer, where only the last positions of samples are
// wanted.
#pragma once

#include "kernels/ops.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// The part of a micro-batch, or of a step, that goes on where only last positions are wanted. Behind the last
// attention, only short convolutions look at earlier tokens, so the last few tokens of each sample, or of each
// sequence's part of the step, are enough: they alone get results of that attention, and go through its output
// projection and all layers behind it. They go on as a batch of their own; results of the first of these tokens are
// wrong, and nobody uses them. The states that the convolutions leave in the caches are right.
struct Tail {
  Tensor rows;      // [tokens kept] int32: which rows of the residual stream are kept
  Tensor residual;  // [tokens kept, hidden] act: the residual stream from the cut on
  Batch batch;      // describes the kept tokens
};

// Behind the token mixer of the model's last layer, no token looks at another: only the rows whose results are wanted
// go through its feed-forward.
struct WantedRows {
  Tensor rows;      // [wanted] int32: which rows of the residual stream, or of the tail's
  Tensor residual;  // [wanted, hidden] act: where the result goes
};

// Tokens of each sample that must be kept behind the last attention to compute its last position; 0 where the model has
// no attention.
int64_t tail_length(const ModelConfig& config);
// The layer after whose token mixer the residual stream is cut down to the tail; -1 where the model has no attention.
int64_t last_attention_layer(const ModelConfig& config);
// Whether that layer is among these, or before all of them: a stage that cuts the tails, or gets nothing but tails.
bool cuts_tails(const ModelConfig& config, LayerRange layers);
bool gets_tails(const ModelConfig& config, LayerRange layers);

}  // namespace lfm2
