// One decoder layer: two norms, a token mixer and a feed-forward, both added into the residual stream in place.
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
  // The two blocks of a layer, called in this order, where they are there. `normed` goes in as operator_norm() of the
  // residual, or, where this is not `computed` yet, as room for it; feed_forward() leaves in it the residual's `next`
  // norm (that of the layer behind), where it is given. All tensors are [tokens, hidden] act. A `tail` is given to the
  // layer that cuts it, an attention: the sum goes to tail->residual, and feed_forward() goes on with that.
  void mix_tokens(Ops& ops, const Tensor& normed, bool computed, const Tensor& residual, const Batch& batch,
                  const LayerCache* cache, Scratch& scratch, const Tail* tail = nullptr) const;
  void feed_forward(Ops& ops, const Tensor& residual, const Norm* next, const Tensor& normed, Scratch& scratch) const;
  Norm operator_norm() const { return {operator_norm_, eps_}; }

 private:
  float eps_;
  Tensor operator_norm_, ffn_norm_;  // [hidden]
  std::optional<std::variant<ShortConv, Attention>> mixer_;
  std::optional<std::variant<Mlp, Moe>> ffn_;
};

}  // namespace lfm2
