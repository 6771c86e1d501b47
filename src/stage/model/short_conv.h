// The gated short convolution block (conv.*): in_proj, causal depthwise convolution between two gates, out_proj.
#pragma once

#include <span>

#include "stage/model/model_config.h"
#include "stage/model/pass.h"

namespace lfm2 {

class ShortConv {
 public:
  ShortConv(WeightSource& weights, const ModelConfig& config, const std::string& prefix);
  std::span<const Tensor> in_products() const { return {&in_proj_, 1}; }  // those that read the norm before it
  // Returns the gated convolution [tokens, hidden] of norm(residual): act, or fp8 as out_proj multiplies it.
  Tensor mix(const Pass& pass, const Norm& norm) const;
  const OutProjection& out_projection() const { return out_proj_; }

 private:
  Tensor in_proj_, in_bias_;  // [3 hidden, hidden], [3 hidden] or empty
  Tensor conv_, conv_bias_;   // [hidden, L], [hidden] or empty
  OutProjection out_proj_;    // of [tokens, hidden]
};

}  // namespace lfm2
