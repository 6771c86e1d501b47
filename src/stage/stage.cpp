// The forward of one pipeline stage, written once over the operators.
#include "stage/stage.h"

namespace lfm2 {

Stage::Stage(WeightSource& weights, const ModelConfig& config, LayerRange layers)
    : config_(config), layers_range_(layers) {
  const std::string embedding = "model.embed_tokens.weight";
  if (first()) embedding_ = weights.load({embedding}, {config.vocab, config.hidden});
  for (int64_t layer = layers.first; layer < layers.end(); ++layer) layers_.emplace_back(weights, config, layer);
  if (!last()) return;
  final_norm_ = weights.load({"model.embedding_norm.weight"}, {config.hidden});
  if (!config.tied_embedding)
    lm_head_ = weights.load({"lm_head.weight"}, {config.vocab, config.hidden});
  else
    lm_head_ = first() ? embedding_ : weights.load({embedding}, {config.vocab, config.hidden});
}

void Stage::embed(Ops& ops, const Tensor& ids, const Tensor& residual) const { ops.embed(ids, embedding_, residual); }

void Stage::forward(Ops& ops, const Tensor& residual, const Batch& batch, Scratch& scratch) const {
  for (const Layer& layer : layers_) layer.forward(ops, residual, batch, scratch);
}

void Stage::head(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch, const Tensor& logits) const {
  scratch.reset();
  Tensor chosen = residual;
  if (rows) {
    chosen = scratch.take(residual.dtype, {rows.dim(0), config_.hidden});
    ops.gather_rows(residual, rows, chosen);
  }
  const Tensor normed = scratch.take(residual.dtype, {chosen.dim(0), config_.hidden});
  ops.rms_norm(chosen, final_norm_, config_.norm_eps, normed);
  ops.matmul(normed, lm_head_, {}, logits, Write::kStore);
}

}  // namespace lfm2
