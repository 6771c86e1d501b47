// Fused experts are stored as one block for each layer. Each expert's matrices are contiguous in it, so they become
// parts of the same file without a copy. The same holds for scales of fp8 that are stored for all experts together.
#include <fmt/format.h>

#include "base/error.h"
#include "stage/shards/fp8_tensors.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& message) {
  throw Error(ExitCode::kData, fmt::format("{}: {}", what, message));
}

RawTensor* rename(RawTensors& found, const std::string& from, const std::string& to, const std::string& what) {
  auto node = found.extract(from);
  if (node.empty()) return nullptr;
  node.key() = to;
  const auto added = found.insert(std::move(node));
  if (!added.inserted) refuse(what, fmt::format("holds both {} and {}", from, to));
  return &added.position->second;
}

// A tensor of all experts of a layer, and the matrices of each expert in it.
struct Fused {
  std::string name;
  std::vector<std::string> matrices;  // such as w1 and w3, whose rows follow each other
  std::string ending;                 // of the name of one expert's tensor
  uint64_t rows = 0, columns = 0;     // of one matrix
};

// Cuts the tensor [experts, matrices * rows, columns] into one tensor [rows, columns] for each expert and matrix. Only
// fp8 and its scales keep their name, since other checkpoints are merged with separate experts.
void unfuse(RawTensors& found, const std::string& prefix, const Fused& fused, bool keeps_name,
            const ModelConfig& config, const std::string& what) {
  const auto at = found.find(prefix + fused.name);
  if (at == found.end()) return;
  const RawTensor block = std::move(at->second);
  found.erase(at);
  const auto experts = static_cast<uint64_t>(config.experts);
  const std::vector<uint64_t> expected = {experts, fused.matrices.size() * fused.rows, fused.columns};
  if (block.dims != expected)
    refuse(what, fmt::format("tensor {}{} has shape {}, expected {}", prefix, fused.name, dims_text(block.dims),
                             dims_text(expected)));
  RawTensor part{{fused.rows, fused.columns},
                 block.dtype,
                 block.file,
                 block.offset,
                 block.bytes / (experts * fused.matrices.size()),
                 keeps_name || block.dtype == DType::kF8 ? prefix + fused.name : std::string()};
  for (uint64_t expert = 0; expert < experts; ++expert) {
    for (const std::string& matrix : fused.matrices) {
      const std::string single = fmt::format("{}{}.{}{}", prefix, expert, matrix, fused.ending);
      if (!found.emplace(single, part).second)
        refuse(what, fmt::format("holds both {}{} and {}", prefix, fused.name, single));
      part.offset += part.bytes;
    }
  }
}

// Renames the experts of llm-compressor, which have transformers' names of projections.
void rename_experts(RawTensors& found, const std::string& prefix, const ModelConfig& config, const std::string& what) {
  const std::pair<const char*, const char*> matrices[] = {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};
  for (int64_t expert = 0; expert < config.experts; ++expert) {
    for (const auto& [theirs, ours] : matrices) {
      for (const std::string_view ending : {".weight", ".weight_scale", ".weight_scale_inv"}) {
        const std::string from = fmt::format("{}{}.{}{}", prefix, expert, theirs, ending);
        if (RawTensor* tensor = rename(found, from, fmt::format("{}{}.{}{}", prefix, expert, ours, ending), what))
          tensor->checkpoint_name = from;
      }
    }
  }
}

// Cuts fused scales if the experts are fp8; otherwise they mean nothing and are left out.
void unfuse_scales(RawTensors& found, const std::string& prefix, const Fused& scales, const ModelConfig& config,
                   const std::string& what, std::vector<std::string>& left_out) {
  const auto at = found.find(prefix + scales.name);
  if (at == found.end()) return;
  const std::string matrix = scales.matrices.front();
  const auto weight = found.find(fmt::format("{}0.{}.weight", prefix, matrix));
  if (weight == found.end() || weight->second.dtype != DType::kF8) {
    left_out.push_back(at->first);
    found.erase(at);
    return;
  }
  if (matrix == "w1" && config.moe_ffn % kScaleBlock != 0)
    refuse(what, fmt::format("tensor {}{}: a row of scales belongs to gate and up rows, expected a "
                             "moe_intermediate_size that {} divides, found {}",
                             prefix, scales.name, kScaleBlock, config.moe_ffn));
  unfuse(found, prefix, scales, true, config, what);
}

void normalize_layer(RawTensors& found, const ModelConfig& config, int64_t layer, const std::string& what,
                     std::vector<std::string>& left_out) {
  const std::string feed_forward = layer_prefix(layer) + "feed_forward.", experts = feed_forward + "experts.";
  const auto hidden = static_cast<uint64_t>(config.hidden), ffn = static_cast<uint64_t>(config.moe_ffn);
  const auto blocks = [](uint64_t extent) { return (extent - 1) / kScaleBlock + 1; };
  rename(found, feed_forward + "expert_bias.weight", feed_forward + "expert_bias", what);
  rename_experts(found, experts, config, what);
  unfuse(found, experts, {"gate_up_proj", {"w1", "w3"}, ".weight", ffn, hidden}, false, config, what);
  unfuse(found, experts, {"down_proj", {"w2"}, ".weight", hidden, ffn}, false, config, what);
  if (config.quantization.scheme != Quantization::Scheme::kBlock) return;
  const std::string ending = ".weight_scale_inv";
  unfuse_scales(found, experts, {"gate_up_proj_scale_inv", {"w1", "w3"}, ending, blocks(ffn), blocks(hidden)}, config,
                what, left_out);
  unfuse_scales(found, experts, {"down_proj_scale_inv", {"w2"}, ending, blocks(hidden), blocks(ffn)}, config, what,
                left_out);
}

// The names that a checkpoint may have for the scales of a weight.
std::vector<std::string> names_of_scales(const std::string& weight) {
  return {scale_name(weight), scale_name(weight) + "_inv"};
}

RawTensor take_scale(RawTensors& found, const TensorSpec& weight, const TensorSpec& scale, const std::string& what) {
  std::optional<RawTensor> taken;
  for (const std::string& name : names_of_scales(weight.name)) {
    auto node = found.extract(name);
    if (node.empty()) continue;
    if (taken) refuse(what, fmt::format("holds both {} and {}", scale.name, name));
    taken = std::move(node.mapped());
    if (taken->checkpoint_name.empty() && name != scale.name) taken->checkpoint_name = name;
  }
  if (!taken)
    refuse(what, fmt::format("tensor {} is missing, expected shape {}: {} is fp8", scale.name, dims_text(scale.dims),
                             weight.name));
  expect_scale(scale, taken->dims, taken->dtype, what);
  return std::move(*taken);
}

// Adds the scales of an fp8 weight. Scales of other weights may contain anything, because transformers writes
// uninitialised memory for weights that it leaves in bf16.
void match_scale(MatchedTensors& matched, RawTensors& found, const ModelConfig& config, const std::string& what) {
  const TensorSpec weight = matched.specs.back();
  if (matched.raw.back().dtype == DType::kF8) {
    expect_fp8_weight(weight, matched.raw.back().checkpoint_name, config.quantization, what);
    matched.specs.push_back(scale_spec(weight, config.quantization.scheme));
    matched.raw.push_back(take_scale(found, weight, matched.specs.back(), what));
  } else if (config.quantization.scheme != Quantization::Scheme::kNone && may_be_fp8(weight)) {
    for (const std::string& name : names_of_scales(weight.name)) {
      auto node = found.extract(name);
      if (node.empty()) continue;
      const std::string& theirs = node.mapped().checkpoint_name;
      matched.left_out.push_back(theirs.empty() ? name : theirs);
    }
  }
}

}  // namespace

static void rename_gates(RawTensors& found, int64_t layer, const std::string& what) {
  const std::string block = layer_prefix(layer) + "self_attn.";
  for (const std::string_view ending : {"weight", "weight_scale", "weight_scale_inv"})
    rename(found, fmt::format("{}{}.{}", block, kGatesInMemory, ending),
           fmt::format("{}{}.{}", block, kGatesInFiles, ending), what);
}

MatchedTensors match_tensors(const ModelConfig& config, RawTensors found, const std::string& what) {
  MatchedTensors matched;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.head_gates) rename_gates(found, layer, what);
    if (!config.is_dense(layer)) normalize_layer(found, config, layer, what, matched.left_out);
  }
  FeedForwardTypes types;
  for (TensorSpec& spec : model_tensors(config)) {
    auto node = found.extract(spec.name);
    if (node.empty())
      refuse(what, fmt::format("tensor {} is missing, expected shape {}", spec.name, dims_text(spec.dims)));
    if (node.mapped().dims != spec.dims)
      refuse(what, fmt::format("tensor {} has shape {}, expected {}", spec.name, dims_text(node.mapped().dims),
                               dims_text(spec.dims)));
    types.add(spec, node.mapped().dtype, what);
    matched.raw.push_back(std::move(node.mapped()));
    matched.specs.push_back(std::move(spec));
    match_scale(matched, found, config, what);
  }
  if (config.tied_embedding) {
    if (auto node = found.extract("lm_head.weight"); !node.empty()) matched.tied_head = std::move(node.mapped());
  }
  if (!found.empty())
    refuse(what, fmt::format("tensor {} belongs to no part of the model: {} such tensors, expected none",
                             found.begin()->first, found.size()));
  return matched;
}

}  // namespace lfm2
