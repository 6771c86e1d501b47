// The mixture of experts (feed_forward.gate, expert_bias, experts.*): routing, tokens sorted by expert, grouped SwiGLU,
// weighted sum.
#pragma once

#include "stage/model/model_config.h"
#include "stage/model/pass.h"

namespace lfm2 {

class Moe {
 public:
  Moe(WeightSource& weights, const ModelConfig& config, const std::string& prefix);
  // residual += block(norm(residual)); then normed = next(residual) if `next` is given.
  void forward(Pass& pass, const Norm& norm, const Norm* next) const;

 private:
  RouterRule rule_;
  int64_t experts_, ffn_;  // ffn_: feed-forward dimension of an expert, padded to the gate/up block
  Tensor gate_;            // [experts, hidden]: the router
  Tensor expert_bias_;     // [experts] fp32 or empty
  Tensor gate_up_;         // [experts, 2 ffn, hidden]: for each expert, blocks of w1 rows and of w3 rows in turn
  Tensor down_;            // [experts, hidden, ffn]
};

}  // namespace lfm2
