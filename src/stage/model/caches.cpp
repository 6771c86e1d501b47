// Sizes of the caches, and the allocation of their memory.
#include "stage/model/caches.h"

namespace lfm2 {

namespace {

int64_t count_layers(const ModelConfig& config, LayerRange layers, LayerType type) {
  int64_t count = 0;
  for (int64_t layer = layers.first; layer < layers.end(); ++layer)
    count += layers.has_mixer(layer) && config.layer_types[static_cast<size_t>(layer)] == type ? 1 : 0;
  return count;
}

// Bytes of one row of states in all short convolutions of the stage.
uint64_t state_bytes(const ModelConfig& config, LayerRange layers) {
  const int64_t elements = (config.conv_length - 1) * config.hidden;
  return static_cast<uint64_t>(count_layers(config, layers, LayerType::kConv) * elements) * sizeof(float);
}

}  // namespace

uint64_t page_bytes(const ModelConfig& config, LayerRange layers, DType compute, const CacheShape& shape) {
  const AttentionShape heads = config.attention();
  const int64_t elements = 2 * shape.page_size * heads.kv_heads * heads.head_dim;
  return static_cast<uint64_t>(count_layers(config, layers, LayerType::kAttention) * elements) * size_bytes(compute) +
         (shape.keeps_prefixes ? state_bytes(config, layers) : 0);
}

uint64_t slot_bytes(const ModelConfig& config, LayerRange layers) { return 2 * state_bytes(config, layers); }

Caches::Caches(Backend& backend, const ModelConfig& config, LayerRange layers, DType compute, CacheShape shape)
    : memory_(backend) {
  const AttentionShape heads = config.attention();
  for (int64_t layer = layers.first; layer < layers.end(); ++layer) {
    LayerCache cache;
    if (!layers.has_mixer(layer)) {
      layers_.push_back(cache);
      continue;
    }
    if (config.layer_types[static_cast<size_t>(layer)] == LayerType::kAttention) {
      cache.key_values.keys = memory_.allocate(compute, {shape.pages, shape.page_size, heads.kv_heads, heads.head_dim});
      cache.key_values.values =
          memory_.allocate(compute, {shape.pages, shape.page_size, heads.kv_heads, heads.head_dim});
    } else {
      const int64_t rows = shape.first_page_row() + (shape.keeps_prefixes ? shape.pages : 0);
      cache.conv = {.states = memory_.allocate(DType::kF32, {rows, config.conv_length - 1, config.hidden}),
                    .first_page_row = shape.first_page_row(),
                    .page_size = shape.keeps_prefixes ? shape.page_size : 0};
    }
    layers_.push_back(cache);
  }
}

}  // namespace lfm2
