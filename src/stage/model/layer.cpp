// Lfm2DecoderLayer and Lfm3DecoderLayer of transformers, composed of the blocks. In formulas, for the residual stream
// x:
//
//    n = rms_norm(x)                                                                  operator_norm_
//    ShortConv:  B, C, z = in_proj n;  x += out_proj (C ∘ causal_conv(B ∘ z))         one of the two:
//    Attention:  q, k, v = qkv_proj n;  q, k = rope(rms_norm(q)), rope(rms_norm(k))   mixer_
//                x += out_proj (causal softmax(q kᵀ / √head_dim) v)
//    n = rms_norm(x)                                                                  ffn_norm_
//    Mlp:        x += w2 (silu(w1 n) ∘ w3 n)                                          one of the two:
//    Moe:        p = sigmoid(gate n);  experts = top_k(p + expert_bias)               ffn_
//                x += Σ over experts of p / Σ p · w2 (silu(w1 n) ∘ w3 n)
//
// LFM3 adds the norm of each block's result instead, and its attention has a gate for each head before out_proj, a
// window in some layers, and a rotation for each kind of attention.
#include "stage/model/layer.h"

#include <algorithm>
#include <span>

#include "stage/model/tensor_table.h"

namespace lfm2 {

namespace {

std::variant<ShortConv, Attention> make_mixer(WeightSource& weights, const ModelConfig& config, int64_t index) {
  switch (config.layer_types[static_cast<size_t>(index)]) {
    case LayerType::kConv:
      return ShortConv(weights, config, layer_prefix(index));
    case LayerType::kAttention:
    case LayerType::kSlidingAttention:
      break;
  }
  return Attention(weights, config, layer_prefix(index), config.layer_types[static_cast<size_t>(index)]);
}

std::variant<Mlp, Moe> make_feed_forward(WeightSource& weights, const ModelConfig& config, int64_t index) {
  if (config.is_dense(index)) return Mlp(weights, config, layer_prefix(index));
  return Moe(weights, config, layer_prefix(index));
}

// How the norm before these products is written.
void find_readers(Norm& norm, std::span<const Tensor> products) {
  const auto is_fp8 = [](const Tensor& w) { return w.dtype == DType::kF8; };
  norm.feeds_fp8 = std::ranges::any_of(products, is_fp8);
  if (std::ranges::all_of(products, is_fp8)) norm.fp8_group = products.front().scales.group;
}

}  // namespace

Layer::Layer(WeightSource& weights, const ModelConfig& config, int64_t index, LayerRange layers)
    : is_last_(index + 1 == config.layers),
      tail_length_(index == last_attention_layer(config) ? tail_length(config) : 0) {
  const std::string prefix = layer_prefix(index);
  if (layers.has_mixer(index)) {
    operator_norm_ = {weights.load({prefix + "operator_norm.weight"}, {config.hidden}), config.norm_eps};
    mixer_.emplace(make_mixer(weights, config, index));
    find_readers(operator_norm_, std::visit([](const auto& mixer) { return mixer.in_products(); }, *mixer_));
  }
  if (layers.has_feed_forward(index)) {
    ffn_norm_ = {weights.load({prefix + "ffn_norm.weight"}, {config.hidden}), config.norm_eps};
    ffn_.emplace(make_feed_forward(weights, config, index));
    if (const Mlp* mlp = std::get_if<Mlp>(&*ffn_)) find_readers(ffn_norm_, mlp->in_products());
  }
}

void Layer::forward(Pass& pass, const Layer* next) const {
  if (mixer_) {
    pass.scratch.reset();
    pass.norm_before_mixer(operator_norm_);
    const bool prunes_tokens = pass.pruning != nullptr && tail_length_ > 0;
    if (prunes_tokens) pass.batch.output_tokens = tail_length_;
    // A mixture of experts computes its norm itself, and rows without a result need none.
    const bool keeps_rows = !is_last_ || pass.output == nullptr;
    const Norm* normed_after_mixer = ffn_ && std::holds_alternative<Mlp>(*ffn_) && keeps_rows ? &ffn_norm_ : nullptr;
    std::visit(
        [&](const auto& mixer) {
          Tensor mixed = mixer.mix(pass, operator_norm_);
          if (prunes_tokens) mixed = pass.prune_tokens(mixed);
          pass.add(mixed, mixer.out_projection(), normed_after_mixer);
        },
        *mixer_);
    pass.is_normed = normed_after_mixer != nullptr;
  }
  if (!ffn_) return;
  if (is_last_ && pass.output != nullptr) pass.keep(pass.output->rows, pass.output->residual);
  pass.scratch.reset();
  const Norm* next_norm = next != nullptr && !pass.fuses(next->operator_norm_) ? &next->operator_norm_ : nullptr;
  std::visit([&](const auto& ffn) { ffn.forward(pass, ffn_norm_, next_norm); }, *ffn_);
  pass.is_normed = next_norm != nullptr;
}

}  // namespace lfm2
