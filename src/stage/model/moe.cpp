// Lfm2MoeSparseMoeBlock of transformers, composed of the operators.
#include "stage/model/moe.h"

namespace lfm2 {

Moe::Moe(WeightSource& weights, const ModelConfig& config, const std::string& prefix)
    : rule_(config.router()), experts_(config.experts), ffn_(padded_ffn(config.moe_ffn)) {
  const std::string block = prefix + "feed_forward.";
  gate_ = weights.load({block + "gate.weight"}, {experts_, config.hidden});
  if (config.expert_bias) expert_bias_ = weights.load({block + "expert_bias"}, {experts_});
  std::vector<std::string> gate_up, down;
  for (int64_t expert = 0; expert < experts_; ++expert) {
    const std::string name = fmt::format("{}experts.{}.", block, expert);
    gate_up.push_back(name + "w1.weight");
    gate_up.push_back(name + "w3.weight");
    down.push_back(name + "w2.weight");
  }
  gate_up_ = weights.load_for_products(gate_up, {experts_, 2 * ffn_, config.hidden}, WeightSource::Rows::kGateUp);
  down_ = weights.load_for_products(down, {experts_, config.hidden, ffn_});
}

void Moe::forward(Pass& pass, const Norm& norm, const Norm* next) const {
  Ops& ops = pass.ops;
  Scratch& scratch = pass.scratch;
  const Tensor& residual = pass.residual;
  const int64_t tokens = residual.dim(0), hidden = residual.dim(1), rows = tokens * rule_.top_k;
  const Tensor x = scratch.allocate(residual.dtype, {tokens, hidden});
  const Routing routing{.ids = scratch.allocate(DType::kI32, {tokens, rule_.top_k}),
                        .weights = scratch.allocate(DType::kF32, {tokens, rule_.top_k}),
                        .sources = scratch.allocate(DType::kI32, {rows}),
                        .rows = scratch.allocate(DType::kI32, {tokens, rule_.top_k}),
                        .expert_offsets = scratch.allocate(DType::kI32, {experts_ + 1})};
  const Tensor sorted = scratch.allocate_for(gate_up_, x.dtype, {rows, hidden});
  const Tensor product = scratch.allocate(x.dtype, {rows, ffn_});
  const Tensor output = scratch.allocate(x.dtype, {rows, hidden});
  ops.norm_route_swiglu(residual, norm.weight, norm.eps, gate_, expert_bias_, rule_, gate_up_, x, routing, sorted,
                        product);
  if (next == nullptr && !pass.must_round(product, down_))
    return ops.matmul_combine_experts(product, down_, routing, output, residual);
  ops.grouped_matmul(pass.operand(product, down_), down_, routing.expert_offsets, output);
  if (next == nullptr) return ops.combine_experts(output, routing, residual);
  ops.combine_experts_norm(output, routing, residual, next->weight, next->eps, pass.normed_by(*next));
}

}  // namespace lfm2
