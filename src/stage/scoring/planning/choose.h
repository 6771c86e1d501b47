// Chooses the fastest plan of a pipeline by replays: the cut of the layers, the size of micro-batches, and late parts
// of the last micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "stage/model/partition.h"
#include "stage/scoring/plan.h"
#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// A job of `tokens` tokens in samples of `length` tokens, on `stages` stages. `size` cuts its micro-batches, and
// size.tokens is the upper limit of the choice. If `size` sets a number of samples, only the cut is chosen.
struct PipelineJob {
  int64_t stages = 1, tokens = 0, length = 1;
  MicroBatches::Size size;
  double result_bytes = 0;                               // of results for each token
  int64_t pipelines_on_host = 1;                         // pipelines that emit results at the same time
  int result_threads = std::numeric_limits<int>::max();  // of each pipeline
  std::vector<int> devices = {};                         // as in PipelineCosts
  int64_t pieces = 0;                                    // on each rank; 0: chosen
  bool balance = true;                                   // false: pieces with equal numbers of layers
};

struct PipelineChoice {
  PipelineShape shape = {};
  std::vector<LayerRange> cut = {};  // [virtual stages]; empty if the caller gave the cut
  // The size of micro-batches of whole samples, or of parts if samples may be cut. The last micro-batch gets the rest.
  // If that is faster, it has a 16th to a half of the others' size, so that less work remains to drain and emit at the
  // end.
  int64_t target_tokens = 0;
  LateParts late = {};
  double seconds = std::numeric_limits<double>::infinity();  // predicted time of the job
};

// Chooses pieces, cut and micro-batch. Several pieces are chosen only if they save a few percent. Cuts are balanced by
// the blocks' costs if that is faster than equal cuts.
PipelineChoice choose(const BlockCosts& costs, const PipelineJob& job);
// The same for a given cut: chooses micro-batch and late parts.
PipelineChoice choose(const PipelineCosts& costs, const PipelineJob& job);

// The seconds that the results of a token take to be emitted.
double result_seconds(const PipelineJob& job);

// A job of one rank whose last micro-batch is cut by LateParts: micro-batches of `whole` samples, and a last one of
// `rest`. `early`: the share of the layers before LateParts::layer.
struct LateJob {
  int64_t micro_batches = 1, whole = 1, rest = 1;
  int64_t second = 1;  // LateParts::samples
  double early = 0;
};
// Its seconds. `seconds_of`: those of a number of samples in all layers.
double late_seconds(const PipelineJob& job, const LateJob& late, const std::function<double(int64_t)>& seconds_of);

// The costs of the virtual stages of this cut.
PipelineCosts costs_of_cut(const BlockCosts& costs, const PipelineJob& job, const std::vector<LayerRange>& cut);

// The candidate sizes of micro-batches in tokens, largest first, for whole samples and for parts. Each candidate costs
// a replay, so there are at most kMaxCandidates. If there would be more, candidates are spaced by equal ratios from the
// largest to the smallest.
inline constexpr size_t kMaxCandidates = 64;
std::vector<int64_t> candidate_targets(const PipelineJob& job);

}  // namespace lfm2
