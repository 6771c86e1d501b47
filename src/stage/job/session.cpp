// Weights are loaded once. The channel is made again when a job needs a larger one.
#include "stage/job/session.h"

#include <algorithm>

namespace lfm2 {

namespace {

std::vector<Stage> make_pieces(WeightSource& weights, const ModelConfig& config, std::span<const LayerRange> ranges) {
  std::vector<Stage> pieces;
  for (const LayerRange& range : ranges) pieces.emplace_back(weights, config, range);
  return pieces;
}

}  // namespace

Session::Session(const ShardSet& shards, Place place, Progress& progress, int readers)
    : place_(std::move(place)),
      weights_(shards, place_.backend, place_.compute, progress, readers),
      pieces_(make_pieces(weights_, shards.config(), place_.pieces)) {
  weights_.finish();
  weights_.expect_all_loaded(stage_tensors(shards, place_.pieces));
}

StageLinks Session::links(int64_t max_tokens, int first_buffers) {
  if (place_.stages > 1 && (max_tokens > channel_tokens_ || first_buffers > channel_buffers_)) {
    channel_.reset();
    channel_tokens_ = std::max(max_tokens, channel_tokens_);
    channel_buffers_ = std::max(first_buffers, channel_buffers_);
    const auto elements = static_cast<size_t>(channel_tokens_ * pieces_.front().config().hidden);
    channel_ = place_.make_channel({.buffer_bytes = elements * size_bytes(place_.compute),
                                    .buffers = place_.index == 0 ? channel_buffers_ : kBuffers,
                                    .ring = pieces_.size() > 1});
  }
  return {.backend = place_.backend,
          .pieces = pieces_,
          .channel = channel_.get(),
          .control = place_.control.get(),
          .index = place_.index,
          .stages = place_.stages,
          .watchdog = place_.watchdog};
}

void leave_out_unneeded(ShardSet& shards, const ResultKind& results) {
  if (results.hidden == Hidden::kNone) return;
  const int64_t layers = shards.config().layers, wanted = results.after_layer;
  if (wanted > layers)
    throw Error(ExitCode::kUsage,
                fmt::format("--after-layer {}: expected at most num_hidden_layers = {}", wanted, layers));
  shards.leave_out_behind(wanted > 0 ? wanted : layers, wanted > 0 ? ModelEnd::kLastLayer : ModelEnd::kFinalNorm);
}

StageMemory stage_memory(const ShardSet& shards, std::span<const LayerRange> pieces, DType compute, int64_t tokens,
                         int64_t rows) {
  StageMemory cost = stage_memory(shards.config(), pieces, compute, compute, tokens, rows);
  cost.weight_bytes = held_bytes(stage_tensors(shards, pieces), compute);
  return cost;
}

}  // namespace lfm2
