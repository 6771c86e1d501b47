// Where tokens are pruned, and how many are kept.
#include "stage/model/token_pruning.h"

namespace lfm2 {

int64_t last_attention_layer(const ModelConfig& config) {
  for (int64_t layer = config.layers - 1; layer >= 0; --layer)
    if (is_attention(config.layer_types[static_cast<size_t>(layer)])) return layer;
  return -1;
}

int64_t tail_length(const ModelConfig& config) {
  const int64_t attention = last_attention_layer(config);
  return attention < 0 ? 0 : 1 + (config.layers - 1 - attention) * (config.conv_length - 1);
}

bool prunes_tokens(const ModelConfig& config, LayerRange layers) {
  return layers.has_mixer(last_attention_layer(config));
}

bool starts_pruned(const ModelConfig& config, LayerRange layers) {
  return first_block(layers) > last_attention_layer(config) * kBlocksOfLayer;
}

}  // namespace lfm2
