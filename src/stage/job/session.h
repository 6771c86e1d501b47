// A loaded stage and its links to the others of its pipeline: what one job after another runs on.
#pragma once

#include <functional>
#include <memory>

#include "comm/channel.h"
#include "comm/control_link.h"
#include "comm/watchdog.h"
#include "kernels/backend.h"
#include "stage/io/results.h"
#include "stage/model/memory_plan.h"
#include "stage/model/stage.h"
#include "stage/pipeline/stage_run.h"
#include "stage/shards/shard_weights.h"

namespace lfm2 {

class Session {
 public:
  // Where the stage is in its pipeline. The stages are processes that MPI joins or, in tests, threads.
  struct Place {
    Backend& backend;
    Watchdog& watchdog;
    int64_t index = 0, stages = 1;
    LayerRange layers;
    DType compute = DType::kF32;
    // The links to the other stages; null for a single stage. make_channel is called for the first job.
    std::function<std::unique_ptr<Channel>()> make_channel;
    std::unique_ptr<ControlLink> control;
  };

  // Loads the stage's layers, with `readers` threads. `shards` must outlive this.
  Session(const ShardSet& shards, Place place, Progress& progress, int readers);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The links for a job. Collective in the pipeline.
  StageLinks links();

  const Stage& stage() const { return stage_; }
  Backend& backend() const { return place_.backend; }
  DType compute() const { return place_.compute; }
  uint64_t weight_bytes() const { return weights_.bytes(); }

 private:
  Place place_;
  ShardWeights weights_;
  Stage stage_;
  std::unique_ptr<Channel> channel_;
};

// Leaves out what a job with these results does not compute: of hidden states the LM head, and of those after a layer
// all that stands behind it. Error(kUsage) where the model has no such layer.
void leave_out_unneeded(ShardSet& shards, const ResultKind& results);

// The memory that stage `index` of `stages` takes while micro-batches or steps of up to `tokens` tokens go through it.
// The last stage computes `rows` rows of logits for each.
StageMemory stage_memory(const ShardSet& shards, LayerRange layers, int64_t index, int64_t stages, DType compute,
                         int64_t tokens, int64_t rows);

}  // namespace lfm2
