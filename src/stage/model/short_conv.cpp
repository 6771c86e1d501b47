// Lfm2ShortConv and Lfm3ShortConv of transformers, composed of the operators.
#include "stage/model/short_conv.h"

namespace lfm2 {

ShortConv::ShortConv(WeightSource& weights, const ModelConfig& config, const std::string& prefix) {
  const int64_t hidden = config.hidden;
  in_proj_ = weights.load_for_products({prefix + "conv.in_proj.weight"}, {3 * hidden, hidden});
  conv_ = weights.load({prefix + "conv.conv.weight"}, {hidden, config.conv_length});
  out_proj_.weight = weights.load_for_products({prefix + "conv.out_proj.weight"}, {hidden, hidden});
  out_proj_.norm = load_post_norm(weights, config, prefix + "post_operator_norm");
  if (!config.conv_bias) return;
  in_bias_ = weights.load({prefix + "conv.in_proj.bias"}, {3 * hidden});
  conv_bias_ = weights.load({prefix + "conv.conv.bias"}, {hidden});
  out_proj_.bias = weights.load({prefix + "conv.out_proj.bias"}, {hidden});
}

Tensor ShortConv::mix(const Pass& pass, const Norm& norm) const {
  Ops& ops = pass.ops;
  const Tensor& residual = pass.residual;
  const int64_t tokens = residual.dim(0), hidden = residual.dim(1);
  const Tensor bcz = pass.scratch.allocate(residual.dtype, {tokens, 3 * hidden});
  Tensor gated = pass.scratch.allocate(residual.dtype, {tokens, hidden});
  const bool fused = pass.cache != nullptr && (in_proj_.dtype != DType::kF8 || !pass.is_normed);
  if (!fused && pass.must_round(gated, out_proj_.weight) && ops.rounds_short_conv(bcz, conv_))
    gated = as_fp8_rows(gated, out_proj_.weight.scales.group);
  if (pass.cache == nullptr) {
    pass.project(norm, in_proj_, in_bias_, bcz);
    ops.short_conv(bcz, conv_, conv_bias_, pass.batch, gated);
  } else if (!fused) {
    pass.project(norm, in_proj_, in_bias_, bcz);
    ops.cached_short_conv(bcz, conv_, conv_bias_, pass.batch, pass.cache->conv, gated);
  } else if (pass.is_normed) {
    ops.project_short_conv(pass.normed, in_proj_, in_bias_, conv_, conv_bias_, pass.batch, pass.cache->conv, bcz,
                           gated);
  } else {
    ops.norm_project_short_conv(residual, norm.weight, norm.eps, in_proj_, in_bias_, conv_, conv_bias_, pass.batch,
                                pass.cache->conv, pass.normed, bcz, gated);
  }
  return gated;
}

}  // namespace lfm2
