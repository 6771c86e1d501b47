// The attention block (self_attn.*): fused q, k, v projection, QK-norm and RoPE, causal grouped-query attention,
// out_proj.
#pragma once

#include "stage/model/model_config.h"
#include "stage/model/pass.h"

namespace lfm2 {

class Attention {
 public:
  // `tail_length`: the tokens of each sample that go on after this attention, where the pass has a tail; 0: all do.
  Attention(WeightSource& weights, const ModelConfig& config, const std::string& prefix, int64_t tail_length);
  // residual += block(norm(residual)). Where the tails are cut here, the other tokens leave their keys and values.
  void forward(Pass& pass, const Norm& norm) const;

 private:
  AttentionShape shape_;
  float eps_, rope_theta_;
  int64_t tail_length_;
  Tensor qkv_proj_;         // [(heads + 2 kv_heads) head_dim, hidden]: the rows of q, then of k, then of v
  Tensor q_norm_, k_norm_;  // [head_dim]
  Tensor out_proj_;         // [hidden, heads head_dim]
};

}  // namespace lfm2
