// The fastest way through a pipeline, by replaying it: how the layers are cut, the size of micro-batches, and whether
// the last one goes through the last layers in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "stage/model/partition.h"
#include "stage/scoring/plan.h"
#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// A job of `tokens` tokens in samples of `length` tokens, on `stages` stages. `size` cuts its micro-batches, and its
// tokens are the most to choose; where `size` gives a number of samples, only the cut is chosen.
struct PipelineJob {
  int64_t stages = 1, tokens = 0, length = 1;
  MicroBatches::Size size;
  double result_bytes = 0;                               // of a token
  int64_t pipelines_on_host = 1;                         // that emit results at the same time
  int result_threads = std::numeric_limits<int>::max();  // of each of them
  std::vector<int> devices = {};                         // as in PipelineCosts
  int64_t pieces = 0;                                    // of each rank; 0: chosen
  bool balance = true;                                   // false: pieces of equally many layers
};

struct PipelineChoice {
  PipelineShape shape = {};
  std::vector<LayerRange> cut = {};  // [virtual stages]; empty where it was given
  // The size of micro-batch: that of whole samples, or of parts of them where they may go in parts. The last one gets
  // the rest. Where that pays, it is a 16th to a half of the others, so that the pipeline drains and emits less at the
  // end.
  int64_t target_tokens = 0;
  LateParts late = {};
  double seconds = std::numeric_limits<double>::infinity();  // that the job takes
};

// Pieces, cut and micro-batch. More pieces than one only where they save a few percent. Balanced cuts follow what
// blocks cost, where that is faster than equal ones.
PipelineChoice choose(const BlockCosts& costs, const PipelineJob& job);
// The same where the layers are cut: micro-batch and late parts.
PipelineChoice choose(const PipelineCosts& costs, const PipelineJob& job);

// The costs of virtual stages that are cut so.
PipelineCosts costs_of_cut(const BlockCosts& costs, const PipelineJob& job, const std::vector<LayerRange>& cut);

// The sizes of micro-batch in tokens among which the best is looked for, largest first: where samples are whole, and
// where they go in parts. Each costs a replay, so there are at most kMaxCandidates, which then are as far apart as each
// other by ratio, the largest and the smallest among them.
inline constexpr size_t kMaxCandidates = 64;
std::vector<int64_t> candidate_targets(const PipelineJob& job);

}  // namespace lfm2
