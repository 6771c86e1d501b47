// One decoder layer: two norms, a token mixer and a feed-forward, both added to the residual stream in place.
#pragma once

#include <optional>
#include <variant>

#include "stage/model/attention.h"
#include "stage/model/mlp.h"
#include "stage/model/moe.h"
#include "stage/model/partition.h"
#include "stage/model/short_conv.h"

namespace lfm2 {

class Layer {
 public:
  // Layer `index` of a stage with these layers, which may have one of its blocks only.
  Layer(WeightSource& weights, const ModelConfig& config, int64_t index, LayerRange layers);
  // residual += mixer(operator_norm(residual)); residual += feed_forward(ffn_norm(residual)). Tokens that no later
  // block looks at leave the pass on the way: see TokenPruning and OutputRows. Where `next`, the layer after this one,
  // is given, pass.normed may get the norm that it begins with.
  void forward(Pass& pass, const Layer* next) const;

 private:
  Norm operator_norm_, ffn_norm_;
  bool is_last_;         // of the model
  int64_t tail_length_;  // of the last attention: tokens of each sample that a tail keeps; of other layers 0
  std::optional<std::variant<ShortConv, Attention>> mixer_;
  std::optional<std::variant<Mlp, Moe>> ffn_;
};

}  // namespace lfm2
