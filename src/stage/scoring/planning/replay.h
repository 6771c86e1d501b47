// Replays the schedule of a pipeline with the time of each action, to predict the time of a job and of each rank's
// computation. A pure function, by which virtual stages, micro-batch and cut are chosen.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// A computation of a rank: layers, or final norm and LM head.
struct ReplayedSpan {
  int64_t stage, piece, micro_batch;
  bool head;
  double start, end;
};

// Seconds of the actions. Actions without a function take no time.
struct ActionTimes {
  std::function<double(int64_t virtual_stage, int64_t micro_batch)> forward;
  std::function<double(int64_t micro_batch)> transfer;      // from a rank to the next one
  std::function<double(int64_t micro_batch)> head;          // final norm and LM head, on the last rank
  std::function<double(int64_t micro_batch)> results = {};  // to emit the results, in parallel with computation
  std::function<void(const ReplayedSpan&)> on_computed = {};
};

struct Replayed {
  double seconds = 0;        // until the last result is emitted
  std::vector<double> busy;  // [stages]: seconds of forwards and heads
};

// Transfers of one link, and computations of one rank, run one after another; everything else runs in parallel. The
// host of a rank waits for free buffers and for arrivals, as Scorer does. Ranks with the same number in `devices`
// [stages] share a device: their computations also run one after another, in the order in which they could begin.
// Empty: each rank has its own device. Error(kSoftware) if the schedule deadlocks.
Replayed replay(PipelineShape shape, int64_t micro_batches, const ActionTimes& times,
                std::span<const int> devices = {});

// The number of micro-batches in the two replays of a long job: once this number and twice this number. It is a whole
// number of groups, so that the difference is the time of a full pipeline.
inline int64_t replayed_part(PipelineShape shape) { return 4 * Schedule::smallest_group(shape); }
// The seconds of a job of `micro_batches` micro-batches of `tokens` tokens each; the last one has `last_tokens`. Found
// by a replay of the schedule; a long job is extrapolated from a replayed part.
double pipeline_seconds(const PipelineCosts& costs, int64_t micro_batches, int64_t tokens, int64_t last_tokens);

}  // namespace lfm2
