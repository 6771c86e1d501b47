// The gated short convolution block (conv.*): in_proj, causal depthwise convolution between two gates, out_proj.
#pragma once

#include "stage/model/caches.h"
#include "stage/model/model_config.h"
#include "stage/model/scratch.h"
#include "stage/model/weight_source.h"

namespace lfm2 {

class ShortConv {
 public:
  ShortConv(WeightSource& weights, const ModelConfig& config, const std::string& prefix);
  // residual += block(x).  x, residual [tokens, hidden] act. With a cache, the tokens continue its sequences. Where
  // `norm` is given, x is only room for that norm of the residual, which is yet to be computed.
  void forward(Ops& ops, const Tensor& x, const Norm* norm, const Batch& batch, const LayerCache* cache,
               Scratch& scratch, const Tensor& residual) const;

 private:
  Tensor in_proj_, in_bias_;    // [3 hidden, hidden], [3 hidden] or empty
  Tensor conv_, conv_bias_;     // [hidden, L], [hidden] or empty
  Tensor out_proj_, out_bias_;  // [hidden, hidden], [hidden] or empty
};

}  // namespace lfm2
