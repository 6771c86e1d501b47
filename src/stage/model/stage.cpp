// The forward of one pipeline stage, written once over the operators.
#include "stage/model/stage.h"

#include <algorithm>

#include "stage/model/tensor_table.h"

namespace lfm2 {

Stage::Stage(WeightSource& weights, const ModelConfig& config, LayerRange layers)
    : config_(config), layers_range_(layers) {
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

void Stage::forward(Ops& ops, const Tensor& residual, const Batch& batch, Scratch& scratch, const Tail* tail,
                    const Caches* caches, const WantedRows* wanted, LayerSpan span) const {
  const int64_t cut = last_attention_layer(config_);
  const auto begin = static_cast<size_t>(std::max<int64_t>(0, span.first - layers_range_.first)),
             end = static_cast<size_t>(std::min(layers_range_.count, span.end - layers_range_.first));
  expect(tail == nullptr || cuts_tails(config_, layers_range_), "Stage::forward: a tail cut elsewhere");
  expect(wanted == nullptr || last(), "Stage::forward: rows wanted in front of the last layer");
  Tensor current = residual;
  Batch current_batch = batch;
  scratch.release();
  // Kept for all layers: each layer leaves its successor's input here, unless that is best left to the successor.
  Tensor normed = scratch.take(residual.dtype, {residual.dim(0), residual.dim(1)});
  scratch.hold();
  bool computed =
      layers_range_.has_mixer(layers_range_.first + static_cast<int64_t>(begin)) && !ops.norms_in_passing(residual);
  if (computed) {
    const Norm first = layers_[begin].operator_norm();
    ops.rms_norm(residual, first.weight, first.eps, normed);
  }
  for (size_t i = begin; i < end; ++i) {
    const int64_t layer = layers_range_.first + static_cast<int64_t>(i);
    const bool cuts = tail != nullptr && layer == cut;
    if (layers_range_.has_mixer(layer)) {
      const bool goes_on = caches != nullptr && (tail == nullptr || layer <= cut || tail->batch.states);
      const LayerCache* cache = goes_on ? &caches->layers()[i] : nullptr;
      if (cuts) current_batch.wanted = tail_length(config_);
      layers_[i].mix_tokens(ops, normed, computed, current, current_batch, cache, scratch, cuts ? tail : nullptr);
    }
    if (cuts) {
      current = tail->residual;
      current_batch = tail->batch;
      normed = normed.rows(0, current.dim(0));
    }
    if (!layers_range_.has_feed_forward(layer)) break;
    const bool ends = i + 1 == end;
    if (ends && wanted != nullptr) {
      ops.gather_rows(current, wanted->rows, wanted->residual);
      current = wanted->residual;
    }
    const Norm next = layers_[ends ? i : i + 1].operator_norm();
    computed = !ends && !ops.norms_in_passing(current);
    layers_[i].feed_forward(ops, current, computed ? &next : nullptr, normed, scratch);
  }
  scratch.release();
}

Tensor Stage::hidden_states(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch) const {
  scratch.reset();
  Tensor chosen = residual;
  if (rows) {
    chosen = scratch.take(residual.dtype, {rows.dim(0), config_.hidden});
    ops.gather_rows(residual, rows, chosen);
  }
  if (!final_norm_) return chosen;
  const Tensor normed = scratch.take(residual.dtype, {chosen.dim(0), config_.hidden});
  ops.rms_norm(chosen, final_norm_, config_.norm_eps, normed);
  return normed;
}

void Stage::head(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch, const Tensor& logits) const {
  ops.matmul(hidden_states(ops, residual, rows, scratch), lm_head_, {}, logits, Write::kStore);
}

}  // namespace lfm2
