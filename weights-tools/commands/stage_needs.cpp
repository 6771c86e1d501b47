// Counts weights from the list of tensors, activations and work by running the forward on operators that only count.
#include "weights-tools/commands/stage_needs.h"

#include "comm/channel.h"
#include "stage/model/memory_plan.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

namespace {

bool belongs_to(const TensorSpec& spec, const LayerRange& range, const ModelConfig& config) {
  const bool first = range.first == 0, last = range.end() == config.layers;
  if (spec.layer == kEmbeddingLayer) return first || (last && config.tied_embedding);
  if (spec.layer == head_layer(config)) return last;
  return spec.layer >= range.first && spec.layer < range.end();
}

// Scores and weighted values of one token, over the mean number of positions that it sees.
double attention_flop(const ModelConfig& config, int64_t length) {
  return 4.0 * static_cast<double>(config.heads * config.head_dim) * static_cast<double>(length + 1) / 2.0;
}

}  // namespace

std::vector<StageNeeds> stage_needs(const ModelSource& model, const std::vector<LayerRange>& stages,
                                    const NeedsInput& input) {
  const ModelConfig& config = model.config();
  const int64_t tokens = input.samples * input.length;
  std::vector<StageNeeds> needs;
  for (const LayerRange& range : stages) {
    const StageMemory cost = stage_memory(config, range, input.act, input.act, tokens, input.samples);
    StageNeeds need;
    need.layers = range;
    need.slot_bytes = kBuffers * cost.residual_bytes;
    need.workspace_bytes = cost.scratch_bytes;
    need.logits_bytes = cost.result_bytes;
    need.gflop_per_token = cost.layer_flops / static_cast<double>(tokens) * 1e-9;
    for (const SourceTensor& tensor : model.tensors()) {
      if (!belongs_to(tensor.spec, range, config)) continue;
      need.parameters += numel(tensor.spec.dims);
      need.weight_bytes += held_elements(tensor.spec) * size_bytes(target_dtype(tensor, input.dtype));
    }
    for (int64_t layer = range.first; layer < range.end(); ++layer) {
      if (config.layer_types[static_cast<size_t>(layer)] != LayerType::kAttention) continue;
      ++need.attention_layers;
      need.gflop_per_token += attention_flop(config, input.length) * 1e-9;
    }
    needs.push_back(need);
  }
  return needs;
}

double head_gflop(const ModelConfig& config) {
  return 2e-9 * static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
}

}  // namespace lfm2
