// The time that micro-batches take in blocks, on stages and between them, estimated or measured.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/words.h"
#include "stage/model/model_config.h"
#include "stage/pipeline/schedule.h"

namespace lfm2 {

// A micro-batch takes fixed + per_token · tokens seconds.
struct StageTime {
  double fixed = 0, per_token = 0;
  double seconds(double tokens) const { return fixed + per_token * tokens; }
};
void for_each_field(MaybeConst<StageTime> auto& time, const auto& each) {  // see base/words.h
  each(time.fixed, time.per_token);
}

// The two sizes of micro-batch, in tokens, that are timed.
struct TimedSizes {
  int64_t small = 1024, large = 4096;
};

// From the seconds for two sizes.
StageTime line_through(TimedSizes sizes, double small, double large);

// What micro-batches cost on each virtual stage of a pipeline, and on their way from a rank to the next.
struct PipelineCosts {
  PipelineShape shape;
  std::vector<StageTime> virtual_stages;
  StageTime transfer;
  std::vector<int> devices = {};  // [stages], see replay(); empty: each has its own
  double result_seconds = 0;      // to emit the results of a token
  // Where one rank has all layers: the shares in a micro-batch's time of those that late parts may follow (LateParts).
  std::vector<double> layer_shares = {};
};

// What micro-batches cost in each block of the layers, and in the LM head.
struct BlockCosts {
  std::vector<StageTime> blocks;
  StageTime head, transfer;
};

// An estimate of the seconds that each block takes for a micro-batch of `tokens` tokens, of which `kept` continue after
// the last attention (0: all). Only ratios between blocks matter, because the estimate decides where the stages are
// cut.
std::vector<double> estimate_block_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept);

// An estimate for GPUs of what MicroBatches::Size calls growth.
double estimate_part_growth(const ModelConfig& config, DType compute, bool last_positions);

// An estimate of PipelineCosts::layer_shares, for samples of `length` tokens of which the last positions are wanted.
std::vector<double> estimate_layer_shares(const ModelConfig& config, DType compute, int64_t length);

// What a transfer between two GPUs costs on NVLink: over NCCL with few thread blocks, and by peer copies
// (docs/performance.md).
struct LinkEstimate {
  double bytes_per_second, seconds;
};
inline constexpr LinkEstimate kNcclLink{67e9, 20e-6}, kPeerLink{280e9, 20e-6};
StageTime estimate_transfer(const ModelConfig& config, DType compute, LinkEstimate link = kNcclLink);

// The same estimates for micro-batches of any size. Of every token, `kept` tokens continue after the last attention
// layer (0: all). The head is left out.
BlockCosts estimate_costs(const ModelConfig& config, DType compute, double kept);

// Like estimate_costs(), but with the measured costs of blocks. The block that prunes tokens was measured while
// cutting them, where tokens are `kept`; all other blocks with every token. Blocks after that one are scaled by the
// estimated share of the kept tokens. The LM head was measured for rows, of which a token has `rows`.
BlockCosts measured_costs(const ModelConfig& config, DType compute, double kept, double rows,
                          const BlockCosts& measured);

}  // namespace lfm2
