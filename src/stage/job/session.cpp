// Weights are loaded once. The channel is made again if a job needs more buffers.
#include "stage/job/session.h"

#include <algorithm>
#include <functional>

namespace lfm2 {

namespace {

std::vector<Stage> make_pieces(WeightSource& weights, const ModelConfig& config, std::span<const LayerRange> ranges) {
  std::vector<Stage> pieces;
  for (const LayerRange& range : ranges) pieces.emplace_back(weights, config, range);
  return pieces;
}

// The weights come from the shards, because routing decides the cost of a layer.
constexpr int kTimingReaders = 4;

}  // namespace

Session::Session(const ShardSet& shards, PipelineRank rank, Progress& progress, int readers)
    : rank_(std::move(rank)),
      weights_(shards, rank_.backend, rank_.compute, progress, readers),
      pieces_(make_pieces(weights_, shards.config(), rank_.pieces)) {
  weights_.finish();
  weights_.expect_all_loaded(stage_tensors(shards, rank_.pieces));
}

StageLinks Session::links(int first_buffers) {
  if (rank_.stages > 1 && first_buffers > channel_buffers_) {
    channel_.reset();
    channel_buffers_ = first_buffers;
    channel_ = rank_.make_channel({.buffers = rank_.index == 0 ? first_buffers : kBuffers, .ring = pieces_.size() > 1});
  }
  return {.backend = rank_.backend,
          .pieces = pieces_,
          .channel = channel_.get(),
          .control = rank_.control.get(),
          .index = rank_.index,
          .stages = rank_.stages,
          .watchdog = rank_.watchdog};
}

void with_block(const ShardSet& shards, Backend& backend, DType compute, int64_t block,
                const std::function<void(const Stage&)>& work) {
  Progress progress("", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  ShardWeights weights(shards, backend, compute, progress, kTimingReaders);
  const Stage stage(weights, shards.config(), layers_of_blocks(block, block + 1));
  weights.finish();
  work(stage);
}

BlockCosts time_blocks(const ShardSet& shards, const Machine& machine, const MpiWorld& world, DType compute,
                       TimedSamples samples, TimedSizes sizes, double timeout_seconds) {
  world.watchdog().enter({.phase = Phase::kPrepare, .limit_seconds = timeout_seconds});
  const BlockKinds kinds = block_kinds(shards.config());
  // The head is timed as one more kind, together with the last block.
  const bool has_head = shards.config().end == ModelEnd::kLmHead;
  const size_t head = kinds.examples.size(), timed = head + (has_head ? 1 : 0);
  Backend& backend = *machine.backend;
  using TimeOfKind = std::pair<size_t, StageTime>;
  std::vector<TimeOfKind> mine, all;
  in_turns(world, machine.devices, timeout_seconds, [&] {
    for (auto kind = static_cast<size_t>(world.rank()); kind < timed; kind += static_cast<size_t>(world.size())) {
      const int64_t block = kind == head ? std::ssize(kinds.kind_of) - 1 : kinds.examples[kind];
      with_block(shards, backend, compute, block, [&](const Stage& stage) {
        mine.emplace_back(kind, kind == head ? measure_head_time(backend, stage, compute)
                                             : measure_stage_time(backend, stage, compute, samples, sizes));
      });
    }
  });
  for (const auto& of_rank : world.gather_values(mine, 0, timeout_seconds, "costs of blocks"))
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  all = world.broadcast_value(all, 0, timeout_seconds, "costs of blocks");
  std::vector<StageTime> of_kind(head + 1);
  for (const auto& [kind, time] : all) of_kind[kind] = time;
  BlockCosts measured{.blocks = {}, .head = of_kind[head], .transfer = {}};
  for (const size_t kind : kinds.kind_of) measured.blocks.push_back(of_kind[kind]);
  return measured;
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
  cost.weight_bytes = held_bytes(shards, stage_tensors(shards, pieces), compute);
  return cost;
}

}  // namespace lfm2
