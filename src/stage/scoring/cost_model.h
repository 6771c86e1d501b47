// The time that a micro-batch takes on a stage, measured before the run or estimated, and the size of micro-batch that
// follows from it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "stage/pipeline/schedule.h"
#include "stage/scoring/measure_stage_time.h"
#include "stage/scoring/plan.h"

namespace lfm2 {

// What micro-batches cost on each virtual stage of a pipeline, and on their way from a rank to the next.
struct PipelineCosts {
  PipelineShape shape;
  std::vector<StageTime> virtual_stages;
  StageTime transfer;
  std::vector<int> devices = {};  // [stages], see replay(); empty: each has its own
  double result_seconds = 0;      // to hand out the results of a token
};

// The seconds of a job of so many micro-batches of `tokens` tokens each, the last of which has `last_tokens`, as its
// schedule is replayed; of a long one, a part is replayed that stands for the rest.
double pipeline_seconds(const PipelineCosts& costs, int64_t micro_batches, int64_t tokens, int64_t last_tokens);

// A block of each kind that the model has (token mixers, among them the one that cuts the tails, and feed-forwards),
// and for each block the number of its kind.
struct BlockKinds {
  std::vector<int64_t> examples;
  std::vector<size_t> kind_of;  // [blocks]
};
BlockKinds block_kinds(const ModelConfig& config);

// What micro-batches cost in each block of the layers, and in the LM head.
struct BlockCosts {
  std::vector<StageTime> blocks;
  StageTime head, transfer;
};

// How the layers are cut, and into how many pieces for each rank; and how long the job would take with the micro-batch
// that suits that best.
struct PipelineChoice {
  PipelineShape shape;
  std::vector<LayerRange> cut;  // [virtual stages]
  int64_t target_tokens = 0;
  double seconds = 0;
};

// A job of `tokens` tokens in samples of `length` tokens, on so many stages. Its micro-batches are cut as `size` says,
// whose tokens are the most to choose.
struct PipelineJob {
  int64_t stages = 1, tokens = 0, length = 1;
  MicroBatches::Size size;
  double result_bytes = 0;                               // of a token
  int64_t pipelines_on_host = 1;                         // that hand out results at the same time
  int result_threads = std::numeric_limits<int>::max();  // of each of them
  std::vector<int> devices = {};                         // as in PipelineCosts
};

// The costs of virtual stages that are cut so.
PipelineCosts costs_of_cut(const BlockCosts& costs, const PipelineJob& job, const std::vector<LayerRange>& cut);
// The choice for a given number of pieces: cut equally, or where `balance` says so by what blocks cost, where that is
// faster.
PipelineChoice choose_micro_batch(const BlockCosts& costs, const PipelineJob& job, int64_t pieces, bool balance);
// The fastest choice of all: pieces, cut and micro-batch. More pieces than one only where they save a few percent.
PipelineChoice choose_pipeline(const BlockCosts& costs, const PipelineJob& job);

// The sizes of micro-batch in tokens among which the best is looked for, largest first: where samples are whole, and
// where they go in parts. Each costs a replay, so there are at most kMaxCandidates, which then are as far apart as each
// other by ratio, the largest and the smallest among them.
inline constexpr size_t kMaxCandidates = 64;
std::vector<int64_t> candidate_targets(const PipelineJob& job);

// The size of micro-batch in tokens for which the job takes least time: that of whole samples, or of parts of them
// where they may go in parts. The last micro-batch gets what is left: where that pays, a 16th to a half of the
// others, so that less is drained and handed out when nothing is left to compute.
int64_t best_target_tokens(const PipelineCosts& costs, const PipelineJob& job);

// A job of one rank that has all layers, whose last micro-batch goes through the last of them in two parts.
struct LateChoice {
  int64_t target_tokens = 0;
  LateParts parts;
  double seconds = 0;
};
// The fastest of them, where that is faster than the job in micro-batches of best_target_tokens(). `layers`: the share
// of each in a micro-batch's time. The parts begin no later than at layer `last`.
std::optional<LateChoice> choose_late_parts(const PipelineCosts& costs, const PipelineJob& job,
                                            const std::vector<double>& layers, int64_t last);

// An estimate of the seconds that each block takes for a micro-batch of `tokens` tokens, of which `kept` go on behind
// the last attention (0: all). Only ratios between blocks matter, because the estimate decides where the stages are
// cut.
std::vector<double> estimate_block_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept);

// An estimate for GPUs of what MicroBatches::Size calls growth.
double estimate_part_growth(const ModelConfig& config, DType compute, bool last_positions);

// What a transfer between two GPUs costs on NVLink: over NCCL with few thread blocks, and by peer copies
// (docs/performance.md).
struct LinkEstimate {
  double bytes_per_second, seconds;
};
inline constexpr LinkEstimate kNcclLink{67e9, 20e-6}, kPeerLink{280e9, 20e-6};
StageTime estimate_transfer(const ModelConfig& config, DType compute, LinkEstimate link = kNcclLink);

// The same estimates for micro-batches of any size. Of every token, `kept` tokens go on behind the last attention layer
// (0: all). The head is left out.
BlockCosts estimate_costs(const ModelConfig& config, DType compute, double kept);

// The estimates with what blocks were measured to cost (`measured` [blocks]) in the place of what they were estimated
// to: for all tokens, but the block that cuts the tails as it does so where tokens are `kept`. The shares of the blocks
// behind that one stay as estimated. `head`: what the LM head was measured to cost, for rows, of which a token has
// `rows`.
BlockCosts measured_costs(const ModelConfig& config, DType compute, double kept, double rows,
                          const std::vector<StageTime>& measured, StageTime head);

}  // namespace lfm2
