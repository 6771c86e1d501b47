// Weights are loaded once, and the channel is made once.
#include "stage/job/session.h"

namespace lfm2 {

Session::Session(const ShardSet& shards, Place place, Progress& progress, int readers)
    : place_(std::move(place)),
      weights_(shards, place_.backend, place_.compute, progress, readers),
      stage_(weights_, shards.config(), place_.layers) {
  weights_.finish();
  weights_.expect_all_loaded(
      stage_tensors(shards, place_.layers, place_.index == 0, place_.index + 1 == place_.stages));
}

StageLinks Session::links() {
  if (place_.stages > 1 && !channel_) channel_ = place_.make_channel();
  return {.backend = place_.backend,
          .stage = stage_,
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

StageMemory stage_memory(const ShardSet& shards, LayerRange layers, int64_t index, int64_t stages, DType compute,
                         int64_t tokens, int64_t rows) {
  StageMemory cost = stage_memory(shards.config(), layers, compute, compute, tokens, rows);
  cost.weight_bytes = held_bytes(stage_tensors(shards, layers, index == 0, index + 1 == stages), compute);
  return cost;
}

}  // namespace lfm2
