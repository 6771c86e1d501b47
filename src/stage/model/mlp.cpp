// Lfm2MLP and Lfm3MLP of transformers, composed of the operators.
#include "stage/model/mlp.h"

namespace lfm2 {

Mlp::Mlp(WeightSource& weights, const ModelConfig& config, const std::string& prefix) : ffn_(padded_ffn(config.ffn)) {
  gate_up_ = weights.load_for_products({prefix + "feed_forward.w1.weight", prefix + "feed_forward.w3.weight"},
                                       {2 * ffn_, config.hidden}, WeightSource::Rows::kGateUp);
  down_.weight = weights.load_for_products({prefix + "feed_forward.w2.weight"}, {config.hidden, ffn_});
  down_.norm = load_post_norm(weights, config, prefix + "post_ffn_norm");
}

void Mlp::forward(Pass& pass, const Norm& norm, const Norm* next) const {
  Ops& ops = pass.ops;
  const Tensor& residual = pass.residual;
  const Tensor x = pass.normed_by(norm);
  const Tensor product = pass.scratch.allocate(residual.dtype, {residual.dim(0), ffn_});
  if (!pass.is_normed) ops.rms_norm(residual, norm.weight, norm.eps, x);
  ops.matmul_swiglu(x, gate_up_, product);
  pass.add(product, down_, next);
}

}  // namespace lfm2
