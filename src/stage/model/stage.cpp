// The forward of one pipeline stage, written once over the operators.
#include "stage/model/stage.h"

#include <algorithm>

#include "stage/model/tensor_table.h"

namespace lfm2 {

Stage::Stage(WeightSource& weights, const ModelConfig& config, LayerRange layers) : config_(config), range_(layers) {
  const std::string embedding = "model.embed_tokens.weight";
  if (first()) embedding_ = weights.load_for_products({embedding}, {config.vocab, config.hidden});
  for (int64_t layer = layers.first; layer < layers.end(); ++layer)
    layers_.emplace_back(weights, config, layer, layers);
  if (!last() || config.end == ModelEnd::kLastLayer) return;
  final_norm_ = weights.load({std::string(kFinalNormName)}, {config.hidden});
  if (config.end == ModelEnd::kFinalNorm) return;
  if (!config.tied_embedding)
    lm_head_ = weights.load_for_products({"lm_head.weight"}, {config.vocab, config.hidden});
  else
    lm_head_ = first() ? embedding_ : weights.load_for_products({embedding}, {config.vocab, config.hidden});
}

void Stage::embed(Ops& ops, const Tensor& ids, const Tensor& residual) const { ops.embed(ids, embedding_, residual); }

void Stage::forward(Pass pass) const {
  expect(pass.pruning == nullptr || prunes_tokens(config_, range_), "Stage::forward: tokens pruned elsewhere");
  expect(pass.output == nullptr || last(), "Stage::forward: output rows before the last layer");
  const auto begin = static_cast<size_t>(std::max<int64_t>(0, pass.span.first - range_.first)),
             end = static_cast<size_t>(std::min(range_.count, pass.span.end - range_.first));
  pass.scratch.release();
  pass.normed = pass.scratch.allocate(pass.residual.dtype, {pass.residual.dim(0), pass.residual.dim(1)});
  pass.scratch.hold();  // for all layers
  for (size_t i = begin; i < end; ++i) {
    pass.cache = pass.caches != nullptr ? &pass.caches->layers()[i] : nullptr;
    layers_[i].forward(pass, i + 1 < end ? &layers_[i + 1] : nullptr);
    if (pass.taps != nullptr) keep_tap(pass, range_.first + static_cast<int64_t>(i));
  }
  pass.scratch.release();
}

// Copies the residual stream after a layer, if a drafter reads it.
void Stage::keep_tap(const Pass& pass, int64_t layer) const {
  const auto& [layers, rows] = *pass.taps;
  const auto found = std::ranges::find(layers, layer);
  if (found == layers.end() || !range_.has_feed_forward(layer)) return;
  pass.ops.put_columns(pass.residual, 0, rows.at(found - layers.begin()));
}

void Stage::append_keys_values(Pass pass, const Tensor& rows) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    pass.cache = pass.caches != nullptr ? &pass.caches->layers()[i] : nullptr;
    layers_[i].append_keys_values(pass, rows);
  }
}

Tensor Stage::hidden_states(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch) const {
  scratch.reset();
  Tensor chosen = residual;
  if (rows) {
    chosen = scratch.allocate(residual.dtype, {rows.dim(0), config_.hidden});
    ops.gather_rows(residual, rows, chosen);
  }
  if (!final_norm_) return chosen;
  const Tensor normed = scratch.allocate(residual.dtype, {chosen.dim(0), config_.hidden});
  ops.rms_norm(chosen, final_norm_, config_.norm_eps, normed);
  return normed;
}

void Stage::head(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch, const Tensor& logits) const {
  ops.matmul(hidden_states(ops, residual, rows, scratch), lm_head_, {}, logits, Write::kStore);
}

}  // namespace lfm2
