// Replays the schedule of a pipeline with the times that each action takes: how long a job would take, and how long
// each rank would compute. A pure function; the choice of virtual stages, micro-batch and cut goes by it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// Seconds of the actions. What is not given takes no time.
struct ActionTimes {
  std::function<double(int64_t virtual_stage, int64_t micro_batch)> forward;
  std::function<double(int64_t micro_batch)> transfer;      // from a rank to the next
  std::function<double(int64_t micro_batch)> head;          // final norm and LM head, on the last rank
  std::function<double(int64_t micro_batch)> results = {};  // to hand them out, beside what is computed meanwhile
};

struct Replayed {
  double seconds = 0;        // until the last result is emitted
  std::vector<double> busy;  // [stages]: seconds of forwards and heads
};

// Transfers of an edge, and the computations of a rank, run one after the other; all else at once. The host of a rank
// waits for free buffers and for arrivals, as Scorer does. `devices` [stages] gives ranks that share a device the same
// number: their computations, too, run one after the other, in the order in which they could begin. Empty: each rank
// has its own. Error(kSoftware) where the schedule deadlocks.
Replayed replay(PipelineShape shape, int64_t micro_batches, const ActionTimes& times,
                std::span<const int> devices = {});

// The micro-batches of a long job that are replayed once and twice: whole groups, so that one like the other follows
// when the pipeline is full.
inline int64_t replayed_part(PipelineShape shape) { return 4 * Schedule::smallest_group(shape); }
// The seconds of a job of `micro_batches` micro-batches of `tokens` tokens each, the last of which has `last_tokens`,
// by a replay of its schedule; of a long job, a part is replayed that stands for the rest.
double pipeline_seconds(const PipelineCosts& costs, int64_t micro_batches, int64_t tokens, int64_t last_tokens);

}  // namespace lfm2
