// One stage of a golden case, loaded on its own CPU backend.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "stage/scoring/scorer.h"
#include "stage/shards/shard_weights.h"
#include "support/shards.h"

namespace lfm2::test {

struct LoadedStage {
  LoadedStage(const std::string& golden_case, LayerRange range, DType compute_type, int threads = 1)
      : shards(ShardSet::open(golden_shards(golden_case, 4))),
        compute(compute_type),
        backend(threads),
        progress("", 0, Progress::Unit::kBytes, ProgressMode::kOff),
        weights(shards, backend, compute_type, progress, threads),
        stage(weights, shards.config(), range) {
    weights.finish();
  }

  ShardSet shards;
  DType compute;
  CpuBackend backend;
  Progress progress;
  ShardWeights weights;
  Stage stage;
};

// Collects every row of logits.
class LogitsCollector : public ResultConsumer {
 public:
  void take(const ResultRows& rows) override { logits.insert(logits.end(), rows.logits.begin(), rows.logits.end()); }
  std::vector<float> logits;
};

}  // namespace lfm2::test
