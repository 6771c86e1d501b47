// The layers of one rank of a golden case, loaded on its own CPU backend.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "stage/scoring/scorer.h"
#include "stage/shards/shard_weights.h"
#include "support/shards.h"

namespace lfm2::test {

struct LoadedStage {
  LoadedStage(const std::string& golden_case, LayerRange range, DType compute_type, int threads = 1,
              std::optional<DType> cache_type = {})
      : LoadedStage(golden_case, std::vector<LayerRange>{range}, compute_type, threads, cache_type) {}
  LoadedStage(const std::string& golden_case, const std::vector<LayerRange>& ranges, DType compute_type,
              int threads = 1, std::optional<DType> cache_type = {})
      : shards(ShardSet::open(golden_shards(golden_case, 4))),
        compute(compute_type),
        backend(threads),
        progress("", 0, Progress::Unit::kBytes, ProgressMode::kOff),
        weights(shards, backend, compute_type, progress, threads) {
    shards.choose_cache_dtype(cache_type, compute_type);
    for (const LayerRange& range : ranges) pieces.emplace_back(weights, shards.config(), range);
    weights.finish();
  }
  const Stage& stage() const { return pieces.front(); }

  ShardSet shards;
  DType compute;
  CpuBackend backend;
  Progress progress;
  ShardWeights weights;
  std::vector<Stage> pieces;
};

// Collects every row of logits.
class LogitsCollector : public ResultConsumer {
 public:
  void consume(const ResultRows& rows) override { logits.insert(logits.end(), rows.logits.begin(), rows.logits.end()); }
  std::vector<float> logits;
};

}  // namespace lfm2::test
