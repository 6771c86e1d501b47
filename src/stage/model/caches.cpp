// Sizes of the caches, and the allocation of their memory.
#include "stage/model/caches.h"

namespace lfm2 {

namespace {

int64_t count_layers(const ModelConfig& config, LayerRange layers, LayerType type) {
  int64_t count = 0;
  for (int64_t layer = layers.first; layer < layers.end(); ++layer)
    count += config.layer_types[static_cast<size_t>(layer)] == type ? 1 : 0;
  return count;
}

}  // namespace

uint64_t page_bytes(const ModelConfig& config, LayerRange layers, DType compute, int64_t page) {
  const AttentionShape shape = config.attention();
  const int64_t elements = 2 * page * shape.kv_heads * shape.head_dim;
  return static_cast<uint64_t>(count_layers(config, layers, LayerType::kAttention) * elements) * size_bytes(compute);
}

uint64_t slot_bytes(const ModelConfig& config, LayerRange layers) {
  const int64_t elements = 2 * (config.conv_length - 1) * config.hidden;
  return static_cast<uint64_t>(count_layers(config, layers, LayerType::kConv) * elements) * sizeof(float);
}

Caches::Caches(Backend& backend, const ModelConfig& config, LayerRange layers, DType compute, CacheShape shape)
    : memory_(backend) {
  const AttentionShape heads = config.attention();
  for (int64_t layer = layers.first; layer < layers.end(); ++layer) {
    LayerCache cache;
    if (config.layer_types[static_cast<size_t>(layer)] == LayerType::kAttention) {
      cache.key_values.keys = memory_.allocate(compute, {shape.pages, shape.page, heads.kv_heads, heads.head_dim});
      cache.key_values.values = memory_.allocate(compute, {shape.pages, shape.page, heads.kv_heads, heads.head_dim});
    } else {
      cache.conv_states = memory_.allocate(DType::kF32, {2 * shape.slots, config.conv_length - 1, config.hidden});
    }
    layers_.push_back(cache);
  }
}

}  // namespace lfm2
