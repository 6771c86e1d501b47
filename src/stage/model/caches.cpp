// Sizes of the caches, and the allocation of their memory.
#include "stage/model/caches.h"

namespace lfm2 {

namespace {

int64_t count_layers(const ModelConfig& config, LayerRange layers, bool attention) {
  int64_t count = 0;
  for (int64_t layer = layers.first; layer < layers.end(); ++layer)
    count += layers.has_mixer(layer) && is_attention(config.layer_types[static_cast<size_t>(layer)]) == attention;
  return count;
}

// Bytes of one row of states in all short convolutions of the stage.
uint64_t state_bytes(const ModelConfig& config, LayerRange layers) {
  const int64_t elements = (config.conv_length - 1) * config.hidden;
  return static_cast<uint64_t>(count_layers(config, layers, false) * elements) * sizeof(float);
}

}  // namespace

uint64_t page_bytes(const ModelConfig& config, LayerRange layers, DType compute, const CacheShape& shape) {
  const AttentionShape heads = config.attention();
  const auto head_bytes = static_cast<uint64_t>(heads.head_dim) * size_bytes(heads.fp8_cache ? DType::kF8 : compute) +
                          (heads.fp8_cache ? 1 : 0);  // with its scale
  const int64_t in_page = 2 * shape.page_size * heads.kv_heads;
  return static_cast<uint64_t>(count_layers(config, layers, true) * in_page) * head_bytes +
         (shape.keeps_prefixes ? state_bytes(config, layers) : 0);
}

uint64_t slot_bytes(const ModelConfig& config, LayerRange layers, const CacheShape& shape) {
  return static_cast<uint64_t>(shape.state_rows()) * state_bytes(config, layers);
}

void Caches::allocate(KeyValueCache& cache, AttentionShape heads, DType compute, const CacheShape& shape) {
  const auto elements = [&] {
    return memory_.allocate(heads.fp8_cache ? DType::kF8 : compute,
                            {shape.pages, shape.page_size, heads.kv_heads, heads.head_dim});
  };
  cache.keys = elements();
  cache.values = elements();
  if (!heads.fp8_cache) return;
  const auto scales = [&] {
    return memory_.allocate(DType::kF8, {shape.pages, shape.page_size, heads.kv_heads}).as<uint8_t>();
  };
  cache.key_scales = scales();
  cache.value_scales = scales();
}

Caches::Caches(Backend& backend, const ModelConfig& config, LayerRange layers, DType compute, CacheShape shape)
    : memory_(backend) {
  for (int64_t layer = layers.first; layer < layers.end(); ++layer) {
    LayerCache& cache = layers_.emplace_back();
    if (!layers.has_mixer(layer)) continue;
    if (is_attention(config.layer_types[static_cast<size_t>(layer)])) {
      allocate(cache.key_values, config.attention(), compute, shape);
    } else {
      const int64_t rows = shape.first_page_row() + (shape.keeps_prefixes ? shape.pages : 0);
      cache.conv = {.states = memory_.allocate(DType::kF32, {rows, config.conv_length - 1, config.hidden}),
                    .first_page_row = shape.first_page_row(),
                    .page_size = shape.keeps_prefixes ? shape.page_size : 0};
    }
  }
}

}  // namespace lfm2
