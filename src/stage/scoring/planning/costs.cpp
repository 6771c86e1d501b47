// Two sizes give a line of seconds over tokens.
#include "stage/scoring/planning/costs.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "stage/model/memory_plan.h"
#include "stage/model/token_pruning.h"
#include "stage/scoring/plan.h"

namespace lfm2 {

namespace {

// The speed of matrix products and of memory, as measured on an H200 (docs/performance.md). Other GPUs differ in both
// by about the same factor, and only the ratio matters.
constexpr double kFlopsPerSecond = 550e12, kBytesPerSecond = 3.5e12, kAttentionFlopsPerSecond = 280e12;
constexpr double kLaunchSeconds = 15e-6;  // the small kernels of a block, which take this long for any number of tokens

}  // namespace

// A hot chip is slower, so the line through the two sizes may meet zero tokens below the time of one token, even below
// zero: then a job would be cut into samples, each of which reads all weights.
StageTime line_through(TimedSizes sizes, double one, double small, double large) {
  const auto tokens = static_cast<double>(sizes.large);
  const double slope = (large - small) / static_cast<double>(sizes.large - sizes.small);
  const double fixed = std::clamp(small - slope * static_cast<double>(sizes.small), std::min(one, large), large);
  return {.fixed = fixed, .per_token = (large - fixed) / tokens};
}

double CostCurve::at(double size) const {
  if (sizes.empty()) return 0;
  if (sizes.size() == 1) return seconds.front();
  size_t right = 1;
  while (right + 1 < sizes.size() && static_cast<double>(sizes[right]) < size) ++right;
  const auto from = static_cast<double>(sizes[right - 1]), to = static_cast<double>(sizes[right]);
  const double slope = (seconds[right] - seconds[right - 1]) / (to - from);
  return std::max(0.0, seconds[right - 1] + slope * (size - from));
}

BlockKinds block_kinds(const ModelConfig& config) {
  BlockKinds kinds;
  // The kind of a block: for a token mixer its type and whether it prunes tokens; for a feed-forward whether it is
  // dense.
  std::vector<std::tuple<std::optional<LayerType>, bool>> known;
  for (int64_t block = 0; block < config.layers * kBlocksOfLayer; ++block) {
    const int64_t layer = block / kBlocksOfLayer;
    const bool mixes = block % kBlocksOfLayer == 0;
    const std::tuple kind{mixes ? std::optional(config.layer_types[static_cast<size_t>(layer)]) : std::nullopt,
                          mixes ? layer == last_attention_layer(config) : config.is_dense(layer)};
    const auto found = static_cast<size_t>(std::find(known.begin(), known.end(), kind) - known.begin());
    if (found == known.size()) {
      known.push_back(kind);
      kinds.examples.push_back(block);
    }
    // Loading the first block also loads the embedding, which is not needed.
    if (kinds.examples[found] == 0) kinds.examples[found] = block;
    kinds.kind_of.push_back(found);
  }
  return kinds;
}

double estimate_part_growth(const ModelConfig& config, DType compute, bool last_positions) {
  const int64_t tokens = kMaxCudaTarget;
  double seconds = 0;
  for (const double block : estimate_block_seconds(config, compute, tokens, 0)) seconds += block;
  auto layers = std::count(config.layer_types.begin(), config.layer_types.end(), LayerType::kAttention);
  // The last one has only the kept tokens. A window does not grow with the text.
  const int64_t last = last_attention_layer(config);
  if (last_positions && last >= 0 && config.layer_types[static_cast<size_t>(last)] == LayerType::kAttention) --layers;
  // Scores and sums of values: a multiplication and an addition each, for every element of a head.
  const auto flops = static_cast<double>(4 * layers * config.heads * config.head_dim);
  return flops / kAttentionFlopsPerSecond / (seconds / static_cast<double>(tokens));
}

std::vector<double> estimate_layer_shares(const ModelConfig& config, DType compute, int64_t length) {
  const int64_t attention = last_attention_layer(config), tokens = kMaxCudaTarget;
  const int64_t kept = std::max<int64_t>(1, tokens / length) * std::min(length, tail_length(config));
  const std::vector<double> blocks = estimate_block_seconds(config, compute, tokens, kept);
  const double all = std::accumulate(blocks.begin(), blocks.end(), 0.0);
  std::vector<double> shares(static_cast<size_t>(std::max<int64_t>(0, attention)));
  for (size_t block = 0; block < shares.size() * kBlocksOfLayer; ++block)
    shares[block / kBlocksOfLayer] += blocks[block] / all;
  return shares;
}

StageTime estimate_transfer(const ModelConfig& config, DType compute, LinkEstimate link) {
  return {.fixed = link.seconds,
          .per_token =
              static_cast<double>(config.hidden) * static_cast<double>(size_bytes(compute)) / link.bytes_per_second};
}

BlockCosts estimate_costs(const ModelConfig& config, DType compute, double kept) {
  const auto seconds = [&](int64_t tokens) {
    const auto tails = static_cast<int64_t>(kept * static_cast<double>(tokens));
    return estimate_block_seconds(config, compute, tokens, kept > 0 ? std::max<int64_t>(1, tails) : 0);
  };
  constexpr TimedSizes kSizes;
  const std::vector<double> one = seconds(1), small = seconds(kSizes.small), large = seconds(kSizes.large);
  BlockCosts costs{.blocks = {}, .head = {}, .transfer = estimate_transfer(config, compute)};
  for (size_t block = 0; block < small.size(); ++block)
    costs.blocks.push_back(line_through(kSizes, one[block], small[block], large[block]));
  return costs;
}

BlockCosts measured_costs(const ModelConfig& config, DType compute, double kept, double rows,
                          const BlockCosts& measured) {
  const BlockCosts whole = estimate_costs(config, compute, 0);
  BlockCosts costs = estimate_costs(config, compute, kept);
  for (size_t block = 0; block < measured.blocks.size(); ++block) {
    // The block that prunes tokens was measured with pruning.
    const bool cuts = static_cast<int64_t>(block) == last_attention_layer(config) * kBlocksOfLayer;
    const BlockCosts& same = cuts ? costs : whole;
    const double share =
        same.blocks[block].per_token > 0 ? costs.blocks[block].per_token / same.blocks[block].per_token : 1;
    costs.blocks[block] = {.fixed = measured.blocks[block].fixed,
                           .per_token = share * measured.blocks[block].per_token};
  }
  if (rows > 0) costs.head = {.fixed = measured.head.fixed, .per_token = rows * measured.head.per_token};
  return costs;
}

std::vector<double> estimate_block_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept) {
  std::vector<double> seconds;
  const int64_t cut = (kept > 0 ? last_attention_layer(config) : config.layers) * kBlocksOfLayer;
  for (int64_t block = 0; block < config.layers * kBlocksOfLayer; ++block) {
    const auto of = [&](int64_t count) {
      const StageMemory cost = stage_memory(config, layers_of_blocks(block, block + 1), compute, compute, count, 0);
      return std::max(cost.layer_flops / kFlopsPerSecond, static_cast<double>(cost.weight_bytes) / kBytesPerSecond) +
             static_cast<double>(cost.scratch_bytes) / kBytesPerSecond + kLaunchSeconds;
    };
    // The attention that prunes tokens costs something between the two: it computes q, k and v of all tokens in one
    // product, and everything else only for the kept tokens.
    seconds.push_back(block < cut ? of(tokens) : block > cut ? of(kept) : 0.5 * of(tokens) + 0.5 * of(kept));
  }
  return seconds;
}

}  // namespace lfm2
