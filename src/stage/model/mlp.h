// The dense feed-forward (feed_forward.w1, w2, w3): a SwiGLU whose gate and up projections are one matrix.
#pragma once

#include <span>

#include "stage/model/model_config.h"
#include "stage/model/pass.h"

namespace lfm2 {

class Mlp {
 public:
  Mlp(WeightSource& weights, const ModelConfig& config, const std::string& prefix);
  std::span<const Tensor> in_products() const { return {&gate_up_, 1}; }  // those that read the norm before it
  // residual += block(norm(residual)); then normed = next(residual) if `next` is given.
  void forward(Pass& pass, const Norm& norm, const Norm* next) const;

 private:
  int64_t ffn_;         // feed-forward dimension, padded to the gate/up block
  Tensor gate_up_;      // [2 ffn, hidden]: blocks of w1 rows and of w3 rows in turn
  OutProjection down_;  // of [tokens, ffn]
};

}  // namespace lfm2
