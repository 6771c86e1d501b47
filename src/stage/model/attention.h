// The attention block (self_attn.*): fused q, k, v projection, QK-norm and RoPE, causal grouped-query attention,
// out_proj.
#pragma once

#include "stage/model/caches.h"
#include "stage/model/model_config.h"
#include "stage/model/scratch.h"
#include "stage/model/tail.h"
#include "stage/model/weight_source.h"

namespace lfm2 {

class Attention {
 public:
  Attention(WeightSource& weights, const ModelConfig& config, const std::string& prefix);
  // residual += block(x).  x, residual [tokens, hidden] act. With a cache, the tokens continue its sequences. Where
  // `norm` is given, x is only room for that norm of the residual, which is yet to be computed. With a tail, only its
  // tokens go on: tail->residual = their rows of residual + block(x); the others leave their keys and values.
  void forward(Ops& ops, const Tensor& x, const Norm* norm, const Batch& batch, const LayerCache* cache,
               Scratch& scratch, const Tensor& residual, const Tail* tail = nullptr) const;

 private:
  AttentionShape shape_;
  float eps_, rope_theta_;
  Tensor qkv_proj_;         // [(heads + 2 kv_heads) head_dim, hidden]: the rows of q, then of k, then of v
  Tensor q_norm_, k_norm_;  // [head_dim]
  Tensor out_proj_;         // [hidden, heads head_dim]
};

}  // namespace lfm2
