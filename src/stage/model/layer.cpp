// Lfm2DecoderLayer of transformers, composed of the blocks.
#include "stage/model/layer.h"

#include "stage/model/tensor_table.h"

namespace lfm2 {

namespace {

std::variant<ShortConv, Attention> make_mixer(WeightSource& weights, const ModelConfig& config, int64_t index) {
  switch (config.layer_types[static_cast<size_t>(index)]) {
    case LayerType::kConv:
      return ShortConv(weights, config, layer_prefix(index));
    case LayerType::kAttention:
      break;
  }
  return Attention(weights, config, layer_prefix(index));
}

std::variant<Mlp, Moe> make_feed_forward(WeightSource& weights, const ModelConfig& config, int64_t index) {
  if (config.is_dense(index)) return Mlp(weights, config, layer_prefix(index));
  return Moe(weights, config, layer_prefix(index));
}

}  // namespace

Layer::Layer(WeightSource& weights, const ModelConfig& config, int64_t index, LayerRange layers)
    : eps_(config.norm_eps) {
  const std::string prefix = layer_prefix(index);
  if (layers.has_mixer(index)) {
    operator_norm_ = weights.load({prefix + "operator_norm.weight"}, {config.hidden});
    mixer_.emplace(make_mixer(weights, config, index));
  }
  if (layers.has_feed_forward(index)) {
    ffn_norm_ = weights.load({prefix + "ffn_norm.weight"}, {config.hidden});
    ffn_.emplace(make_feed_forward(weights, config, index));
  }
}

void Layer::mix_tokens(Ops& ops, const Tensor& normed, bool computed, const Tensor& residual, const Batch& batch,
                       const LayerCache* cache, Scratch& scratch, const Tail* tail) const {
  scratch.reset();
  const Norm norm = operator_norm();
  const Norm* to_compute = computed ? nullptr : &norm;
  if (tail != nullptr)
    return std::get<Attention>(mixer_.value()).forward(ops, normed, to_compute, batch, cache, scratch, residual, tail);
  std::visit([&](const auto& mixer) { mixer.forward(ops, normed, to_compute, batch, cache, scratch, residual); },
             mixer_.value());
}

void Layer::feed_forward(Ops& ops, const Tensor& residual, const Norm* next, const Tensor& normed,
                         Scratch& scratch) const {
  scratch.reset();
  std::visit(
      [&](const auto& ffn) {
        ffn.forward(ops, {ffn_norm_, eps_}, scratch, residual, next, normed);
      },
      ffn_.value());
}

}  // namespace lfm2
