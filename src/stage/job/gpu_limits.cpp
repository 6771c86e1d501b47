// Compares keys of config.json with the limits in src/kernels/cuda/common/limits.h.
#include "stage/job/gpu_limits.h"

#include <algorithm>

#include "kernels/cuda/common/limits.h"

namespace lfm2 {

std::string gpu_refusal(const ModelConfig& config) {
  struct Limit {
    bool applies;  // whether the model has layers that the limit is about
    std::string_view key;
    int64_t found, max;
  };
  const auto has = [&](LayerType type) {
    return std::find(config.layer_types.begin(), config.layer_types.end(), type) != config.layer_types.end();
  };
  const bool attends = has(LayerType::kAttention), convolves = has(LayerType::kConv);
  const Limit limits[] = {
      {attends, "hidden_size / num_attention_heads", config.head_dim, kMaxHeadDim},
      {attends, "num_attention_heads / num_key_value_heads", config.heads / config.kv_heads, kMaxQueriesPerKey},
      {attends, "num_key_value_heads", config.kv_heads, kMaxKeyHeads},
      {convolves, "hidden_size", config.hidden, kMaxConvChannels},
      {config.dense_layers < config.layers, "num_experts", config.experts, kMaxExperts}};
  for (const Limit& limit : limits)
    if (limit.applies && limit.found > limit.max)
      return fmt::format("{} is {}, expected at most {} on GPUs: --device cpu computes this model", limit.key,
                         limit.found, limit.max);
  return "";
}

void expect_gpu_computes(const ModelConfig& config, const std::string& what) {
  const std::string refusal = gpu_refusal(config);
  if (!refusal.empty()) throw Error(ExitCode::kUnavailable, what + ": " + refusal);
}

}  // namespace lfm2
