// Lfm2ShortConv of transformers, composed of the operators.
#include "stage/model/short_conv.h"

namespace lfm2 {

ShortConv::ShortConv(WeightSource& weights, const ModelConfig& config, const std::string& prefix) {
  const int64_t hidden = config.hidden;
  in_proj_ = weights.load_for_products({prefix + "conv.in_proj.weight"}, {3 * hidden, hidden});
  conv_ = weights.load({prefix + "conv.conv.weight"}, {hidden, config.conv_length});
  out_proj_ = weights.load_for_products({prefix + "conv.out_proj.weight"}, {hidden, hidden});
  if (!config.conv_bias) return;
  in_bias_ = weights.load({prefix + "conv.in_proj.bias"}, {3 * hidden});
  conv_bias_ = weights.load({prefix + "conv.conv.bias"}, {hidden});
  out_bias_ = weights.load({prefix + "conv.out_proj.bias"}, {hidden});
}

void ShortConv::forward(Ops& ops, const Tensor& x, const Norm* norm, const Batch& batch, const LayerCache* cache,
                        Scratch& scratch, const Tensor& residual) const {
  const int64_t tokens = x.dim(0), hidden = x.dim(1);
  const Tensor bcz = scratch.take(x.dtype, {tokens, 3 * hidden});
  const Tensor gated = scratch.take(x.dtype, {tokens, hidden});
  if (cache == nullptr) {
    if (norm != nullptr)
      ops.norm_matmul(residual, norm->weight, norm->eps, in_proj_, in_bias_, x, bcz);
    else
      ops.matmul(x, in_proj_, in_bias_, bcz, Write::kStore);
    ops.short_conv(bcz, conv_, conv_bias_, batch, gated);
  } else if (norm != nullptr) {
    ops.norm_project_short_conv(residual, norm->weight, norm->eps, in_proj_, in_bias_, conv_, conv_bias_, batch,
                                cache->conv, x, bcz, gated);
  } else {
    ops.project_short_conv(x, in_proj_, in_bias_, conv_, conv_bias_, batch, cache->conv, bcz, gated);
  }
  ops.matmul(gated, out_proj_, out_bias_, residual, Write::kAdd);
}

}  // namespace lfm2
