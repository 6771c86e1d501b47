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

// Bytes of one page in one attention layer.
uint64_t layer_page_bytes(const ModelConfig& config, DType compute, const CacheShape& shape) {
  const AttentionShape heads = config.attention();
  const auto head_bytes = static_cast<uint64_t>(heads.head_dim) * size_bytes(heads.fp8_cache ? DType::kF8 : compute) +
                          (heads.fp8_cache ? 1 : 0);  // with its scale
  return static_cast<uint64_t>(2 * shape.page_size * heads.kv_heads) * head_bytes;
}

}  // namespace

// Between steps a sequence holds the pages of its last window - 1 positions and of drafts that may be wrong, and a step
// adds at least one position. Prompts begin at the start of a page, except for at most one in a step. With the prefix
// cache, a quarter of all pages can be continued after the sequences that filled them.
void CacheShape::set_pages(int64_t count, int64_t prompt_tokens) {
  pages = count;
  if (window == 0) return;
  const int64_t of_slot = pages_for(window - 1 + max_drafts, page_size) + 1;
  window_pages = std::min(pages, slots * of_slot + prompt_tokens / page_size + 1 + (keeps_prefixes ? pages / 4 : 0));
}

uint64_t page_bytes(const ModelConfig& config, LayerRange layers, DType compute, const CacheShape& shape) {
  const int64_t count = count_layers(config, layers, LayerType::kAttention) +
                        (shape.window == 0 ? count_layers(config, layers, LayerType::kSlidingAttention) : 0);
  return static_cast<uint64_t>(count) * layer_page_bytes(config, compute, shape) +
         (shape.keeps_prefixes ? state_bytes(config, layers) : 0);
}

uint64_t slot_bytes(const ModelConfig& config, LayerRange layers, const CacheShape& shape) {
  return static_cast<uint64_t>(shape.state_rows()) * state_bytes(config, layers);
}

uint64_t cache_bytes(const ModelConfig& config, LayerRange layers, DType compute, const CacheShape& shape) {
  const int64_t windows = shape.window_pages * count_layers(config, layers, LayerType::kSlidingAttention);
  return static_cast<uint64_t>(shape.pages) * page_bytes(config, layers, compute, shape) +
         static_cast<uint64_t>(windows) * layer_page_bytes(config, compute, shape) +
         static_cast<uint64_t>(shape.slots) * slot_bytes(config, layers, shape);
}

void Caches::allocate(KeyValueCache& cache, AttentionShape heads, DType compute, const CacheShape& shape) {
  const int64_t pages = heads.window > 0 && shape.window > 0 ? shape.window_pages : shape.pages;
  const auto elements = [&] {
    return memory_.allocate(heads.fp8_cache ? DType::kF8 : compute,
                            {pages, shape.page_size, heads.kv_heads, heads.head_dim});
  };
  cache.keys = elements();
  cache.values = elements();
  if (!heads.fp8_cache) return;
  const auto scales = [&] {
    return memory_.allocate(DType::kF8, {pages, shape.page_size, heads.kv_heads}).as<uint8_t>();
  };
  cache.key_scales = scales();
  cache.value_scales = scales();
}

Caches::Caches(Backend& backend, const ModelConfig& config, LayerRange layers, DType compute, CacheShape shape)
    : memory_(backend) {
  for (int64_t layer = layers.first; layer < layers.end(); ++layer) {
    LayerCache& cache = layers_.emplace_back();
    if (!layers.has_mixer(layer)) continue;
    const LayerType type = config.layer_types[static_cast<size_t>(layer)];
    if (is_attention(type)) {
      allocate(cache.key_values, config.attention(type), compute, shape);
    } else {
      const int64_t rows = shape.first_page_row() + (shape.keeps_prefixes ? shape.pages : 0);
      cache.conv = {.states = memory_.allocate(DType::kF32, {rows, config.conv_length - 1, config.hidden}),
                    .first_page_row = shape.first_page_row(),
                    .page_size = shape.keeps_prefixes ? shape.page_size : 0};
    }
  }
}

}  // namespace lfm2
