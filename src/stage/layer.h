// One decoder layer: two norms, a token mixer and a feed-forward, both added into the residual stream in place.
#pragma once

#include <variant>

#include "stage/attention.h"
#include "stage/mlp.h"
#include "stage/moe.h"
#include "stage/short_conv.h"

namespace lfm2 {

class Layer {
 public:
  Layer(WeightSource& weights, const ModelConfig& config, int64_t index);
  // The two halves, in this order. residual [tokens, hidden] act
  void mix_tokens(Ops& ops, const Tensor& residual, const Batch& batch, Scratch& scratch) const;
  void feed_forward(Ops& ops, const Tensor& residual, Scratch& scratch) const;

 private:
  float eps_;
  Tensor operator_norm_, ffn_norm_;  // [hidden]
  std::variant<ShortConv, Attention> mixer_;
  std::variant<Mlp, Moe> ffn_;
};

}  // namespace lfm2
