// Weights are counted exactly, workspace is an estimate: the widest operator of a layer, with its input and output.
#include "weights-tools/stage_needs.h"

#include <algorithm>

#include "weights-tools/model_writer.h"

namespace lfm2 {

namespace {

bool is_expert(const TensorSpec& spec) { return spec.name.find(".experts.") != std::string::npos; }

bool belongs_to(const TensorSpec& spec, const LayerRange& range, const ModelConfig& config) {
  const bool first = range.first == 0, last = range.end() == config.layers;
  if (spec.layer == kEmbeddingLayer) return first || (last && config.tied_embedding);
  if (spec.layer == head_layer(config)) return last;
  return spec.layer >= range.first && spec.layer < range.end();
}

// Multiply-adds of one token count 2; of the experts only the chosen ones work.
double layer_flop(const TensorSpec& spec, const ModelConfig& config) {
  if (spec.layer == kEmbeddingLayer || spec.layer == head_layer(config) || spec.dims.size() < 2) return 0.0;
  const double share = is_expert(spec) ? static_cast<double>(config.top_k) / static_cast<double>(config.experts) : 1.0;
  return 2.0 * share * static_cast<double>(numel(spec.dims));
}

// Scores and weighted values over the mean number of visible positions.
double attention_flop(const ModelConfig& config, int64_t length) {
  return 4.0 * static_cast<double>(config.heads * config.head_dim) * static_cast<double>(length + 1) / 2.0;
}

// Elements of activations at the widest place of one layer, for `tokens` tokens.
int64_t widest(const ModelConfig& config, int64_t layer, int64_t tokens) {
  const int64_t norm = config.hidden;
  const bool conv = config.layer_types[static_cast<size_t>(layer)] == LayerType::kConv;
  const int64_t mixer = conv ? 3 * config.hidden + config.hidden : config.attention().qkv_columns() + config.hidden;
  const int64_t ffn = config.is_dense(layer) ? 3 * config.ffn
                                             : config.top_k * (2 * config.hidden + 3 * config.moe_ffn) + config.experts;
  return tokens * (norm + std::max(mixer, ffn));
}

}  // namespace

std::vector<StageNeeds> stage_needs(const ModelSource& model, const std::vector<LayerRange>& stages,
                                   const NeedsInput& input) {
  const ModelConfig& config = model.config();
  const int64_t tokens = input.samples * input.length;
  const auto act_bytes = static_cast<int64_t>(size_bytes(input.act));
  std::vector<StageNeeds> needs;
  for (const LayerRange& range : stages) {
    StageNeeds need;
    need.layers = range;
    for (const SourceTensor& tensor : model.tensors()) {
      if (!belongs_to(tensor.spec, range, config)) continue;
      need.parameters += numel(tensor.spec.dims);
      need.weight_bytes += numel(tensor.spec.dims) * size_bytes(target_dtype(tensor, input.dtype));
      need.gflop_per_token += layer_flop(tensor.spec, config) * 1e-9;
    }
    int64_t workspace = 0;
    for (int64_t layer = range.first; layer < range.end(); ++layer) {
      workspace = std::max(workspace, widest(config, layer, tokens) * act_bytes);
      if (config.layer_types[static_cast<size_t>(layer)] != LayerType::kAttention) continue;
      ++need.attention_layers;
      need.gflop_per_token += attention_flop(config, input.length) * 1e-9;
    }
    need.slot_bytes = static_cast<uint64_t>(2 * tokens * config.hidden * act_bytes);
    need.workspace_bytes = static_cast<uint64_t>(workspace);
    if (range.end() == config.layers)
      need.logits_bytes = static_cast<uint64_t>(2 * input.samples * config.vocab) * sizeof(float);
    needs.push_back(need);
  }
  return needs;
}

double head_gflop(const ModelConfig& config) {
  return 2e-9 * static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
}

}  // namespace lfm2
