// The loaded layers of a rank and its links to the other ranks of its pipeline, on which jobs run one after another.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/channel.h"
#include "comm/control_link.h"
#include "comm/mpi_world.h"
#include "comm/watchdog.h"
#include "kernels/backend.h"
#include "stage/io/results.h"
#include "stage/job/backend_choice.h"
#include "stage/model/memory_plan.h"
#include "stage/model/stage.h"
#include "stage/pipeline/stage_run.h"
#include "stage/scoring/planning/measure.h"
#include "stage/shards/shard_weights.h"

namespace lfm2 {

// A rank's device, stage and links in its pipeline. The stages are processes that MPI joins or, in tests, threads.
struct PipelineRank {
  Backend& backend;
  Watchdog& watchdog;
  int64_t index = 0, stages = 1;
  std::vector<LayerRange> pieces;  // several with interleaved stages
  DType compute = DType::kF32;
  // The links to the other stages; null for a single stage. make_channel is called for the first job, and again if a
  // later job needs more buffers.
  std::function<std::unique_ptr<Channel>(const ChannelShape& shape)> make_channel;
  std::unique_ptr<ControlLink> control;
};

class Session {
 public:
  // Loads the pieces with `readers` threads. `shards` must outlive this.
  Session(const ShardSet& shards, PipelineRank rank, Progress& progress, int readers);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The links for a job in which the first stage has `first_buffers` buffers. Collective in the pipeline: all stages
  // pass the same number.
  StageLinks links(int first_buffers = kBuffers);

  std::span<const Stage> pieces() const { return pieces_; }
  Backend& backend() const { return rank_.backend; }
  DType compute() const { return rank_.compute; }
  uint64_t weight_bytes() const { return weights_.bytes(); }

 private:
  PipelineRank rank_;
  ShardWeights weights_;
  std::vector<Stage> pieces_;
  std::unique_ptr<Channel> channel_;
  int channel_buffers_ = 0;  // buffers of the first stage that the channel supports
};

// Loads one block, for `work` that measures it.
void with_block(const ShardSet& shards, Backend& backend, DType compute, int64_t block,
                const std::function<void(const Stage&)>& work);

// Measures the costs of all blocks and of the LM head on the ranks' devices, before the weights are loaded. --balance
// and --virtual-stages 0 cut by these costs. Loads a block of each kind (BlockKinds) and times it on batches of two
// sizes. The ranks divide the kinds among them, and all get all costs. The head's cost, for rows, is 0 if the model
// ends before its LM head. Transfers are not timed. Collective.
BlockCosts time_blocks(const ShardSet& shards, const Machine& machine, const MpiWorld& world, DType compute,
                       TimedSamples samples, TimedSizes sizes, double timeout_seconds);

// Leaves out the parts of the model that these results do not need: hidden states need no LM head, and those after a
// layer need nothing after that layer. Error(kUsage) if the model has no such layer.
void leave_out_unneeded(ShardSet& shards, const ResultKind& results);

// The memory that a rank with these pieces needs for micro-batches or steps of up to `tokens` tokens. The rank with the
// last layer computes `rows` rows of logits for each.
StageMemory stage_memory(const ShardSet& shards, std::span<const LayerRange> pieces, DType compute, int64_t tokens,
                         int64_t rows);

}  // namespace lfm2
