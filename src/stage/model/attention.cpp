// Lfm2Attention of transformers, composed of the operators.
#include "stage/model/attention.h"

namespace lfm2 {

Attention::Attention(WeightSource& weights, const ModelConfig& config, const std::string& prefix)
    : shape_(config.attention()), eps_(config.norm_eps), rope_theta_(config.rope_theta) {
  const std::string block = prefix + "self_attn.";
  qkv_proj_ = weights.load_for_products({block + "q_proj.weight", block + "k_proj.weight", block + "v_proj.weight"},
                                        {shape_.qkv_columns(), config.hidden});
  q_norm_ = weights.load({block + "q_layernorm.weight"}, {shape_.head_dim});
  k_norm_ = weights.load({block + "k_layernorm.weight"}, {shape_.head_dim});
  out_proj_ = weights.load_for_products({block + "out_proj.weight"}, {config.hidden, shape_.heads * shape_.head_dim});
}

void Attention::forward(Ops& ops, const Tensor& x, const Norm* norm, const Batch& batch, const LayerCache* cache,
                        Scratch& scratch, const Tensor& residual, const Tail* tail) const {
  const int64_t tokens = x.dim(0);
  const Tensor qkv = scratch.take(x.dtype, {tokens, shape_.qkv_columns()});
  const Tensor mixed = scratch.take(x.dtype, {tokens, shape_.heads * shape_.head_dim});
  if (norm != nullptr)
    ops.norm_matmul(residual, norm->weight, norm->eps, qkv_proj_, {}, x, qkv);
  else
    ops.matmul(x, qkv_proj_, {}, qkv, Write::kStore);
  if (cache == nullptr) {
    ops.qk_norm_rope(qkv, q_norm_, k_norm_, eps_, rope_theta_, shape_, batch);
    ops.attention(qkv, shape_, batch, mixed);
  } else {
    ops.qk_norm_rope_append(qkv, q_norm_, k_norm_, eps_, rope_theta_, shape_, batch, cache->key_values);
    ops.cached_attention(qkv, shape_, batch, cache->key_values, mixed);
  }
  if (tail == nullptr) return ops.matmul(mixed, out_proj_, {}, residual, Write::kAdd);
  const Tensor kept = scratch.take(x.dtype, {tail->rows.dim(0), mixed.dim(1)});
  ops.gather_rows(mixed, tail->rows, kept);
  ops.gather_rows(residual, tail->rows, tail->residual);
  ops.matmul(kept, out_proj_, {}, tail->residual, Write::kAdd);
}

}  // namespace lfm2
