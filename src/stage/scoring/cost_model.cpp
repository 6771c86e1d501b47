// Timing two sizes gives a line of seconds over tokens; best_target_tokens tries every number of micro-batches on it.
#include "stage/scoring/cost_model.h"

#include <algorithm>
#include <limits>
#include <random>

#include "stage/model/memory_plan.h"

namespace lfm2 {

namespace {

constexpr int64_t kSmallTokens = 1024, kLargeTokens = 4096;
constexpr int kTimedRuns = 2;  // runs that count, after one that warms up

// The speed of matrix products and of memory, as measured on an H200 (docs/performance.md). Other GPUs differ in both
// by about the same factor, and only the ratio matters.
constexpr double kFlopsPerSecond = 550e12, kBytesPerSecond = 3.5e12;
constexpr double kLaunchSeconds = 30e-6;  // the small kernels of a layer, which take this long for any number of tokens

}  // namespace

StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, int64_t length, double tail_share) {
  length = std::clamp<int64_t>(length, 1, kLargeTokens);
  const StageMemory memory = stage_memory(stage.config(), stage.layers(), compute, compute, kLargeTokens, 0);
  Scratch scratch(backend.allocate(memory.scratch_bytes));
  const int64_t hidden = stage.config().hidden;
  const Buffer hidden_states = backend.allocate(static_cast<size_t>(kLargeTokens * hidden) * size_bytes(compute));
  const Tensor residual(hidden_states.data(), compute, {kLargeTokens, hidden});
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> noise(static_cast<size_t>(residual.numel()));
  for (float& x : noise) x = normal(generator);

  std::vector<int32_t> positions, offsets = {0};
  for (int64_t token = 0; token < kLargeTokens; ++token) {
    positions.push_back(static_cast<int32_t>(token % length));
    if ((token + 1) % length == 0 || token + 1 == kLargeTokens) offsets.push_back(static_cast<int32_t>(token + 1));
  }
  const Buffer indices = backend.allocate((positions.size() + offsets.size()) * sizeof(int32_t));
  const Tensor all_positions(indices.data(), DType::kI32, {kLargeTokens});
  const Tensor all_offsets(indices.data() + positions.size() * sizeof(int32_t), DType::kI32,
                           {static_cast<int64_t>(offsets.size())});
  backend.upload(all_positions, 0, DType::kI32, positions.data(), kLargeTokens);
  backend.upload(all_offsets, 0, DType::kI32, offsets.data(), all_offsets.numel());

  const auto seconds = [&](int64_t tokens) {
    const int64_t sequences = std::lower_bound(offsets.begin(), offsets.end(), tokens) - offsets.begin();
    const Batch batch{.positions = all_positions.rows(0, tokens),
                      .offsets = all_offsets.rows(0, sequences + 1),
                      .tokens = tokens,
                      .sequences = sequences,
                      .max_length = std::min(length, tokens)};
    double fastest = std::numeric_limits<double>::infinity();
    for (int run = 0; run <= kTimedRuns; ++run) {
      // The layers of the run before have changed the residual stream.
      backend.upload(residual, 0, DType::kF32, noise.data(), residual.numel());
      const double start = steady_seconds();
      backend.compute().submit([&] { stage.forward(backend.ops(), residual.rows(0, tokens), batch, scratch); });
      backend.compute().drain();
      if (run > 0) fastest = std::min(fastest, steady_seconds() - start);
    }
    backend.compute().check();
    return fastest * tail_share;
  };
  const double small = seconds(kSmallTokens), large = seconds(kLargeTokens);
  const double per_token = std::max(0.0, (large - small) / static_cast<double>(kLargeTokens - kSmallTokens));
  return {.fixed = std::max(0.0, small - per_token * static_cast<double>(kSmallTokens)), .per_token = per_token};
}

int64_t best_target_tokens(const std::vector<StageTime>& stages, int64_t tokens, int64_t length, int64_t largest) {
  length = std::max<int64_t>(length, 1);
  int64_t best = length;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (int64_t micro_batches = 1; micro_batches <= tokens; ++micro_batches) {
    // A micro-batch has whole samples, as MicroBatches cuts them.
    const int64_t samples = (tokens + length * micro_batches - 1) / (length * micro_batches), target = samples * length;
    if (target > std::max(largest, length)) continue;
    // Handing out the results is one more stage that fills and drains, though a quick one.
    const auto number = static_cast<double>((tokens + target - 1) / target + static_cast<int64_t>(stages.size()));
    double slowest = 0;
    for (const StageTime& stage : stages) slowest = std::max(slowest, stage.seconds(static_cast<double>(target)));
    if (number * slowest < best_seconds) {
      best_seconds = number * slowest;
      best = target;
    }
    if (samples == 1) break;
  }
  return best;
}

double estimate_head_seconds(const ModelConfig& config, DType compute) {
  return static_cast<double>(config.vocab * config.hidden) * static_cast<double>(size_bytes(compute)) / kBytesPerSecond;
}

std::vector<double> estimate_layer_seconds(const ModelConfig& config, DType compute, int64_t tokens, int64_t kept) {
  std::vector<double> seconds;
  const int64_t cut = kept > 0 ? last_attention_layer(config) : config.layers;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    // The layer that cuts the tails takes a time between the two: its token mixer sees all tokens, its feed-forward
    // only the kept ones.
    const auto of = [&](int64_t count) {
      const StageMemory cost = stage_memory(config, {layer, 1}, compute, compute, count, 0);
      return std::max(cost.layer_flops / kFlopsPerSecond, static_cast<double>(cost.weight_bytes) / kBytesPerSecond) +
             static_cast<double>(cost.scratch_bytes) / kBytesPerSecond + kLaunchSeconds;
    };
    if (layer < cut)
      seconds.push_back(of(tokens));
    else if (layer > cut)
      seconds.push_back(of(kept));
    else
      seconds.push_back(0.25 * of(tokens) + 0.75 * of(kept));
  }
  return seconds;
}

}  // namespace lfm2
