// Counts weights by the list of tensors, and activations and work by running the forward on operators that only count.
#include "weights-tools/commands/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "comm/channel.h"
#include "stage/model/memory_plan.h"
#include "stage/shards/fp8_tensors.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

namespace {

constexpr int64_t kDefaultStages = 4;

struct Unit {
  std::string_view text;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits = {{{"", 1.0},
                                          {"B", 1.0},
                                          {"KB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12},
                                          {"KIB", 0x1p10},
                                          {"MIB", 0x1p20},
                                          {"GIB", 0x1p30},
                                          {"TIB", 0x1p40}}};

bool belongs_to(const TensorSpec& spec, const LayerRange& range, const ModelConfig& config) {
  const bool first = range.first == 0, last = range.end() == config.layers;
  if (spec.layer == kEmbeddingLayer) return first || (last && config.tied_embedding);
  if (spec.layer == head_layer(config)) return last;
  return spec.layer >= range.first && spec.layer < range.end();
}

// The work of attention scores and weighted values of one token, over the mean number of positions that it sees: all
// before it, or those of a window.
double attention_flop(const AttentionShape& shape, int64_t length) {
  const int64_t window = shape.window == 0 ? length : std::min(length, shape.window);
  const double fewer = static_cast<double>(window * (window - 1)) / 2.0;  // in all, of the first tokens
  const double keys = static_cast<double>(window) - fewer / static_cast<double>(length);
  return 4.0 * static_cast<double>(shape.heads * shape.head_dim) * keys;
}

}  // namespace

std::optional<DType> wanted_dtype(const std::string& text) {
  if (text == "keep") return std::nullopt;
  const std::optional<DType> dtype = parse_dtype(text);
  if (!dtype) throw Error(ExitCode::kUsage, fmt::format("--dtype is \"{}\", expected keep, fp32, bf16 or fp16", text));
  return dtype;
}

std::vector<LayerRange> choose_stages(int64_t layers, const std::optional<int64_t>& stages,
                                      const std::vector<int64_t>& counts) {
  if (!counts.empty()) return explicit_partition(layers, counts);
  if (stages && (*stages < 1 || *stages > layers))
    throw Error(ExitCode::kUsage,
                fmt::format("--stages is {}, expected 1 to {}: every stage needs a layer", *stages, layers));
  return equal_partition(layers, stages.value_or(std::min(kDefaultStages, layers)));
}

uint64_t parse_bytes(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(static_cast<const char*>(end), text.data() + text.size());
  std::erase(unit, ' ');
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  const auto known = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.text == unit; });
  const double bytes = known == kUnits.end() ? 0.0 : number * known->bytes;
  if (error != std::errc() || !std::isfinite(bytes) || bytes < 1 || bytes > 0x1p60)
    throw Error(ExitCode::kUsage,
                fmt::format("\"{}\" is no amount of memory, expected for example 80GB or 512MiB", text));
  return static_cast<uint64_t>(bytes);
}

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
      if (is_scale(tensor.spec) || !belongs_to(tensor.spec, range, config)) continue;
      const DType held = target_dtype(tensor, input.dtype);
      need.parameters += numel(tensor.spec.dims);
      need.weight_bytes += held_elements(tensor.spec) * size_bytes(held);
      if (held == DType::kF8) need.weight_bytes += sizeof(float) * held_scales(tensor.spec, config.quantization.scheme);
    }
    for (int64_t layer = range.first; layer < range.end(); ++layer) {
      const LayerType type = config.layer_types[static_cast<size_t>(layer)];
      if (!is_attention(type)) continue;
      ++need.attention_layers;
      need.gflop_per_token += attention_flop(config.attention(type), input.length) * 1e-9;
    }
    needs.push_back(need);
  }
  return needs;
}

double head_gflop(const ModelConfig& config) {
  return 2e-9 * static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
}

}  // namespace lfm2
