// One decoder layer: a token mixer and a feed-forward, each with its norm, added to the residual stream in place.
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
  // Layer `index` of a stage with these layers. At the ends of the stage it may have only one of its blocks.
  Layer(WeightSource& weights, const ModelConfig& config, int64_t index, LayerRange layers);
  // residual += mixer(operator_norm(residual)); residual += feed_forward(ffn_norm(residual)). Tokens that no later
  // block needs are dropped from the pass: see TokenPruning and OutputRows. If `next`, the following layer, is given,
  // this function may already write that layer's first norm to pass.normed.
  void forward(Pass& pass, const Layer* next) const;
  // Attention: see Stage::append_keys_values().
  void append_keys_values(const Pass& pass, const Tensor& rows) const {
    std::get<Attention>(*mixer_).append_keys_values(pass, rows);
  }

 private:
  Norm operator_norm_, ffn_norm_;
  bool is_last_;         // of the model
  int64_t tail_length_;  // of the last attention layer: tokens of each sample to keep; of other layers 0
  std::optional<std::variant<ShortConv, Attention>> mixer_;
  std::optional<std::variant<Mlp, Moe>> ffn_;
};

}  // namespace lfm2
