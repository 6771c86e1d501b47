// The estimated or measured times of micro-batches in blocks, on stages and between stages.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/words.h"
#include "stage/model/model_config.h"
#include "stage/pipeline/schedule.h"

namespace lfm2 {

// The time of a micro-batch: fixed + per_token · tokens seconds.
struct StageTime {
  double fixed = 0, per_token = 0;
  double seconds(double tokens) const { return fixed + per_token * tokens; }
};
void for_each_field(MaybeConst<StageTime> auto& time, const auto& each) {  // see base/words.h
  each(time.fixed, time.per_token);
}

// The sizes of micro-batches, in tokens, that are timed beside a single token.
struct TimedSizes {
  int64_t small = 1024, large = 4096;
};

// The line through the seconds measured for two sizes, or, where it is below the seconds of one token there, the line
// through those and the seconds of the large size.
StageTime line_through(TimedSizes sizes, double one, double small, double large);

// Seconds measured for several sizes, which ascend. Lines join them, and the outermost two continue.
struct CostCurve {
  std::vector<int64_t> sizes;
  std::vector<double> seconds;
  double at(double size) const;
};

// One block of each kind in the model (token mixers, among them the one that prunes tokens, and feed-forwards), and the
// kind of every block.
struct BlockKinds {
  std::vector<int64_t> examples;
  std::vector<size_t> kind_of;  // [blocks]
};
BlockKinds block_kinds(const ModelConfig& config);

// The costs of micro-batches on each virtual stage of a pipeline, and of transfers between ranks.
struct PipelineCosts {
  PipelineShape shape;
  std::vector<StageTime> virtual_stages;
  StageTime transfer;
  std::vector<int> devices = {};  // [stages], see replay(); empty: each rank has its own
  double result_seconds = 0;      // seconds to emit the results of a token
  // If one rank has all layers: the shares of a micro-batch's time in those layers after which late parts may begin
  // (LateParts).
  std::vector<double> layer_shares = {};
};

// The costs of micro-batches in each block of the layers, and in the LM head.
struct BlockCosts {
  std::vector<StageTime> blocks;
  StageTime head, transfer;
};

// Estimates the seconds of each block for a micro-batch of `tokens` tokens, of which `kept` continue after the last
// attention (0: all). Only ratios between blocks matter, because the estimate decides where the stages are cut.
std::vector<double> estimate_block_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept);

// Estimates MicroBatches::Size::growth for GPUs.
double estimate_part_growth(const ModelConfig& config, DType compute, bool last_positions);

// Estimates PipelineCosts::layer_shares for samples of `length` tokens, with results of last positions.
std::vector<double> estimate_layer_shares(const ModelConfig& config, DType compute, int64_t length);

// The cost of a transfer between two GPUs on NVLink: over NCCL with few thread blocks, and by peer copies
// (docs/performance.md).
struct LinkEstimate {
  double bytes_per_second, seconds;
};
inline constexpr LinkEstimate kNcclLink{67e9, 20e-6}, kPeerLink{280e9, 20e-6};
StageTime estimate_transfer(const ModelConfig& config, DType compute, LinkEstimate link = kNcclLink);

// The same estimates for micro-batches of any size. The share `kept` of the tokens continues after the last attention
// layer (0: all). The head is not included.
BlockCosts estimate_costs(const ModelConfig& config, DType compute, double kept);

// Like estimate_costs(), but with measured costs of blocks. With `kept`, the block that prunes tokens was measured with
// pruning; all other blocks were measured with every token. Blocks after the pruning are scaled by the estimated share
// of kept tokens. The LM head was measured by rows, and each token has `rows` rows.
BlockCosts measured_costs(const ModelConfig& config, DType compute, double kept, double rows,
                          const BlockCosts& measured);

}  // namespace lfm2
