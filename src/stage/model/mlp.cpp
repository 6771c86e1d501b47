// Lfm2MLP of transformers, composed of the operators.
#include "stage/model/mlp.h"

namespace lfm2 {

Mlp::Mlp(WeightSource& weights, const ModelConfig& config, const std::string& prefix) : ffn_(padded_ffn(config.ffn)) {
  gate_up_ = weights.load_for_products({prefix + "feed_forward.w1.weight", prefix + "feed_forward.w3.weight"},
                                       {2 * ffn_, config.hidden}, WeightSource::Rows::kGateUp);
  down_ = weights.load_for_products({prefix + "feed_forward.w2.weight"}, {config.hidden, ffn_});
}

void Mlp::forward(Pass& pass, const Norm& norm, const Norm* next) const {
  Ops& ops = pass.ops;
  const Tensor& residual = pass.residual;
  const int64_t tokens = residual.dim(0);
  const Tensor x = pass.scratch.allocate_for(gate_up_, residual.dtype, {tokens, residual.dim(1)});
  const Tensor product = pass.scratch.allocate(residual.dtype, {tokens, ffn_});
  ops.rms_norm(residual, norm.weight, norm.eps, x);
  ops.matmul_swiglu(x, gate_up_, product);
  ops.matmul(pass.operand(product, down_), down_, {}, residual, Write::kAdd);
  if (next != nullptr) ops.rms_norm(residual, next->weight, next->eps, pass.normed_by(*next));
}

}  // namespace lfm2
