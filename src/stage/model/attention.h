// The attention block (self_attn.*): fused q, k, v projection, QK-norm and RoPE, causal grouped-query attention,
// out_proj.
#pragma once

#include <span>

#include "stage/model/model_config.h"
#include "stage/model/pass.h"

namespace lfm2 {

class Attention {
 public:
  Attention(WeightSource& weights, const ModelConfig& config, const std::string& prefix);
  std::span<const Tensor> in_products() const { return qkv_proj_; }  // those that read the norm before it
  // Returns the heads' results [tokens, heads head_dim] act for norm(residual). Tokens without results
  // (Batch::output_tokens) only write their keys and values.
  Tensor mix(const Pass& pass, const Norm& norm) const;
  // Writes the tokens' keys and values to the cache, from `rows` [tokens, hidden] act in the place of norm(residual).
  void append_keys_values(const Pass& pass, const Tensor& rows) const;
  // residual += out_proj(mixed)
  void add(const Pass& pass, const Tensor& mixed) const {
    pass.ops.matmul(pass.operand(mixed, out_proj_), out_proj_, {}, pass.residual, Write::kAdd);
  }

 private:
  void project(const Pass& pass, const Norm& norm, const Tensor& qkv) const;

  AttentionShape shape_;
  float eps_;
  Rope rope_;
  // [(heads + 2 kv_heads) head_dim, hidden]: the rows of q, then of k, then of v. Three tensors if only some of the
  // three are fp8.
  std::vector<Tensor> qkv_proj_;
  Tensor q_norm_, k_norm_;  // [head_dim]
  Tensor out_proj_;         // [hidden, heads head_dim]
};

}  // namespace lfm2
