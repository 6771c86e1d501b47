// Lfm2Attention of transformers, composed of the operators.
#include "stage/model/attention.h"

namespace lfm2 {

Attention::Attention(WeightSource& weights, const ModelConfig& config, const std::string& prefix)
    : shape_(config.attention()), eps_(config.norm_eps), rope_{config.rope_theta} {
  const std::string block = prefix + "self_attn.";
  const std::vector<std::string> names = {block + "q_proj.weight", block + "k_proj.weight", block + "v_proj.weight"};
  if (weights.load_together(names)) {
    qkv_proj_ = {weights.load_for_products(names, {shape_.qkv_columns(), config.hidden})};
  } else {
    qkv_proj_ = {weights.load_for_products({names[0]}, {shape_.heads * shape_.head_dim, config.hidden}),
                 weights.load_for_products({names[1]}, {shape_.kv_heads * shape_.head_dim, config.hidden}),
                 weights.load_for_products({names[2]}, {shape_.kv_heads * shape_.head_dim, config.hidden})};
  }
  q_norm_ = weights.load({block + "q_layernorm.weight"}, {shape_.head_dim});
  k_norm_ = weights.load({block + "k_layernorm.weight"}, {shape_.head_dim});
  out_proj_ = weights.load_for_products({block + "out_proj.weight"}, {config.hidden, shape_.heads * shape_.head_dim});
}

void Attention::project(const Pass& pass, const Norm& norm, const Tensor& qkv) const {
  if (qkv_proj_.size() == 1) return pass.project(norm, qkv_proj_.front(), {}, qkv);
  int64_t first = 0;
  for (const Tensor& w : qkv_proj_) {
    const Tensor part = pass.scratch.allocate(qkv.dtype, {qkv.dim(0), w.dim(0)});
    pass.project(norm, w, {}, part);
    pass.ops.put_columns(part, first, qkv);
    first += w.dim(0);
  }
}

Tensor Attention::mix(const Pass& pass, const Norm& norm) const {
  Ops& ops = pass.ops;
  const DType act = pass.residual.dtype;
  const int64_t tokens = pass.residual.dim(0);
  const Tensor qkv = pass.scratch.allocate(act, {tokens, shape_.qkv_columns()});
  const Tensor mixed = pass.scratch.allocate(act, {tokens, shape_.heads * shape_.head_dim});
  project(pass, norm, qkv);
  if (pass.cache == nullptr) {
    ops.qk_norm_rope(qkv, q_norm_, k_norm_, eps_, rope_, shape_, pass.batch);
    ops.attention(qkv, shape_, pass.batch, mixed);
  } else {
    const KeyValueCache& cache = pass.cache->key_values;
    ops.qk_norm_rope_append(qkv, q_norm_, k_norm_, eps_, rope_, shape_, pass.batch, cache);
    ops.cached_attention(qkv, shape_, pass.reads != nullptr ? *pass.reads : pass.batch, cache, mixed);
  }
  return mixed;
}

// The queries, which nothing reads, cost less than separate matrices of keys and values.
void Attention::append_keys_values(const Pass& pass, const Tensor& rows) const {
  expect(qkv_proj_.size() == 1, "Attention: keys and values of fp8 weights");
  pass.scratch.reset();
  const Tensor qkv = pass.scratch.allocate(rows.dtype, {rows.dim(0), shape_.qkv_columns()});
  pass.ops.matmul(rows, qkv_proj_.front(), {}, qkv, Write::kStore);
  pass.ops.qk_norm_rope_append(qkv, q_norm_, k_norm_, eps_, rope_, shape_, pass.batch,
                               pass.cache != nullptr ? pass.cache->key_values : KeyValueCache());
}

}  // namespace lfm2
