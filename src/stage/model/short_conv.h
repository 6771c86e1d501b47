// The gated short convolution block (conv.*): in_proj, causal depthwise convolution between two gates, out_proj.
#pragma once

#include "stage/model/model_config.h"
#include "stage/model/pass.h"

namespace lfm2 {

class ShortConv {
 public:
  ShortConv(WeightSource& weights, const ModelConfig& config, const std::string& prefix);
  // Norm::fp8_group of the norm before it.
  std::optional<int64_t> fp8_group() const {
    return in_proj_.dtype == DType::kF8 ? std::optional(in_proj_.scales.group) : std::nullopt;
  }
  // Returns the gated convolution [tokens, hidden] act of norm(residual).
  Tensor mix(Pass& pass, const Norm& norm) const;
  // residual += out_proj(mixed)
  void add(Pass& pass, const Tensor& mixed) const {
    pass.ops.matmul(pass.operand(mixed, out_proj_), out_proj_, out_bias_, pass.residual, Write::kAdd);
  }

 private:
  Tensor in_proj_, in_bias_;    // [3 hidden, hidden], [3 hidden] or empty
  Tensor conv_, conv_bias_;     // [hidden, L], [hidden] or empty
  Tensor out_proj_, out_bias_;  // [hidden, hidden], [hidden] or empty
};

}  // namespace lfm2
