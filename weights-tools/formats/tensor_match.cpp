// Fused experts are stored as one block for each layer. Each expert's matrices are contiguous in it, so they become
// parts of the same file without a copy.
#include <fmt/format.h>

#include "base/error.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& message) {
  throw Error(ExitCode::kData, fmt::format("{}: {}", what, message));
}

void rename(RawTensors& found, const std::string& from, const std::string& to, const std::string& what) {
  auto node = found.extract(from);
  if (node.empty()) return;
  node.key() = to;
  if (!found.insert(std::move(node)).inserted) refuse(what, fmt::format("holds both {} and {}", from, to));
}

// Cuts `fused` [experts, parts * rows, columns] into one tensor [rows, columns] for each expert and name.
void unfuse(RawTensors& found, const std::string& prefix, const std::string& fused, const ModelConfig& config,
            std::initializer_list<const char*> names, uint64_t rows, uint64_t columns, const std::string& what) {
  const auto at = found.find(prefix + fused);
  if (at == found.end()) return;
  const RawTensor block = std::move(at->second);
  found.erase(at);
  const auto experts = static_cast<uint64_t>(config.experts);
  const std::vector<uint64_t> expected = {experts, names.size() * rows, columns};
  if (block.dims != expected)
    refuse(what, fmt::format("tensor {}{} has shape {}, expected {}", prefix, fused, dims_text(block.dims),
                             dims_text(expected)));
  RawTensor part{{rows, columns}, block.dtype, block.file, block.offset, block.bytes / (experts * names.size())};
  for (uint64_t expert = 0; expert < experts; ++expert) {
    for (const char* name : names) {
      const std::string single = fmt::format("{}{}.{}.weight", prefix, expert, name);
      if (!found.emplace(single, part).second)
        refuse(what, fmt::format("holds both {}{} and {}", prefix, fused, single));
      part.offset += part.bytes;
    }
  }
}

void normalize_layer(RawTensors& found, const ModelConfig& config, int64_t layer, const std::string& what) {
  const std::string feed_forward = layer_prefix(layer) + "feed_forward.";
  const auto hidden = static_cast<uint64_t>(config.hidden), ffn = static_cast<uint64_t>(config.moe_ffn);
  rename(found, feed_forward + "expert_bias.weight", feed_forward + "expert_bias", what);
  unfuse(found, feed_forward + "experts.", "gate_up_proj", config, {"w1", "w3"}, ffn, hidden, what);
  unfuse(found, feed_forward + "experts.", "down_proj", config, {"w2"}, hidden, ffn, what);
}

}  // namespace

MatchedTensors match_tensors(const ModelConfig& config, RawTensors found, const std::string& what) {
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if (!config.is_dense(layer)) normalize_layer(found, config, layer, what);
  MatchedTensors matched;
  matched.specs = model_tensors(config);
  for (const TensorSpec& spec : matched.specs) {
    auto node = found.extract(spec.name);
    if (node.empty())
      refuse(what, fmt::format("tensor {} is missing, expected shape {}", spec.name, dims_text(spec.dims)));
    if (node.mapped().dims != spec.dims)
      refuse(what, fmt::format("tensor {} has shape {}, expected {}", spec.name, dims_text(node.mapped().dims),
                               dims_text(spec.dims)));
    matched.raw.push_back(std::move(node.mapped()));
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
