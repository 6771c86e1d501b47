// The attention block (self_attn.*): fused q, k, v and gate projection, QK-norm and RoPE, causal grouped-query
// attention, gates, output projection.
#pragma once

#include <span>

#include "stage/model/model_config.h"
#include "stage/model/pass.h"

namespace lfm2 {

class Attention {
 public:
  // `type`: full or sliding attention
  Attention(WeightSource& weights, const ModelConfig& config, const std::string& prefix, LayerType type);
  std::span<const Tensor> in_products() const { return qkv_proj_; }  // those that read the norm before it
  // Returns the heads' results [tokens, heads head_dim] act for norm(residual). Tokens without results
  // (Batch::output_tokens) only write their keys and values.
  Tensor mix(const Pass& pass, const Norm& norm) const;
  // Writes the tokens' keys and values to the cache, from `rows` [tokens, hidden] act in the place of norm(residual).
  void append_keys_values(const Pass& pass, const Tensor& rows) const;
  const OutProjection& out_projection() const { return out_proj_; }

 private:
  void load_qkv(WeightSource& weights, const ModelConfig& config, const std::string& block);
  Batch cached(const Pass& pass, Batch batch) const;
  void project(const Pass& pass, const Norm& norm, const Tensor& qkv) const;

  AttentionShape shape_;
  float eps_;
  Rope rope_;
  // [qkv columns, hidden]: the rows of q, then of k, then of v, then of the gates; several tensors where they cannot be
  // one. Each has a bias or an empty tensor.
  std::vector<Tensor> qkv_proj_, qkv_bias_;
  Tensor q_norm_, k_norm_;  // [head_dim]
  OutProjection out_proj_;  // of [tokens, heads head_dim]
};

}  // namespace lfm2
