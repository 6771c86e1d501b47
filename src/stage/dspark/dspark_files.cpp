// Opens the folder of a drafter, and checks the header of its weights.
#include "stage/dspark/dspark_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json/json.h"
#include "kernels/gate_up.h"
#include "stage/model/tensor_table.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxDrafterConfig = uint64_t{1} << 20;
constexpr const char *kDrafterConfigFile = "config.json", *kDrafterWeightsFile = "model.safetensors";
// What a file may also hold: the head that predicts how many drafts are right, and what loaders replace by the
// target's.
constexpr std::array<std::string_view, 4> kLeftOut = {"confidence_head.", "lm_head.", "embed_tokens.", "rotary_emb."};

std::string without_prefix(std::string name) {
  constexpr std::string_view kPrefix = "model.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

}  // namespace

std::vector<DsparkTensor> dspark_tensors(const DsparkConfig& config) {
  const auto extent = [](int64_t value) { return static_cast<uint64_t>(value); };
  const ModelConfig& blocks = config.blocks;
  const uint64_t hidden = extent(blocks.hidden), ffn = extent(blocks.ffn), d = extent(blocks.head_dim);
  const uint64_t queries = extent(blocks.heads) * d, keys = extent(blocks.kv_heads) * d;
  std::vector<DsparkTensor> tensors = {{"fc.weight", {hidden, config.taps.size() * hidden}},
                                       {"hidden_norm.weight", {hidden}},
                                       {"norm.weight", {hidden}}};
  for (int64_t layer = 0; layer < blocks.layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const std::vector<DsparkTensor> own = {{"input_layernorm.weight", {hidden}},
                                           {"self_attn.q_proj.weight", {queries, hidden}},
                                           {"self_attn.k_proj.weight", {keys, hidden}},
                                           {"self_attn.v_proj.weight", {keys, hidden}},
                                           {"self_attn.q_norm.weight", {d}},
                                           {"self_attn.k_norm.weight", {d}},
                                           {"self_attn.o_proj.weight", {hidden, queries}},
                                           {"post_attention_layernorm.weight", {hidden}},
                                           {"mlp.gate_proj.weight", {ffn, hidden}},
                                           {"mlp.up_proj.weight", {ffn, hidden}},
                                           {"mlp.down_proj.weight", {hidden, ffn}}};
    for (const DsparkTensor& tensor : own) tensors.push_back({prefix + tensor.name, tensor.dims});
  }
  const uint64_t vocab = extent(blocks.vocab), rank = extent(config.markov_rank);
  tensors.push_back({"markov_head.markov_w1.weight", {vocab, rank}});
  tensors.push_back({"markov_head.markov_w2.weight", {vocab, rank}});
  return tensors;
}

DsparkFiles DsparkFiles::open(const std::filesystem::path& folder) {
  DsparkFiles files;
  const std::filesystem::path config = folder / kDrafterConfigFile;
  files.config_path = config.string();
  files.config_text = read_text_file(config, kMaxDrafterConfig);
  files.config = parse_dspark_config(files.config_text, files.config_path);
  files.weights = CheckedFile(folder / kDrafterWeightsFile);
  for (auto& [name, raw] : read_safetensors_header(files.weights, 0)) {
    const std::string own = without_prefix(name);
    const bool left_out = std::ranges::any_of(kLeftOut, [&](std::string_view part) { return own.starts_with(part); });
    if (!(left_out ? files.left_out : files.tensors).emplace(own, std::move(raw)).second)
      files.weights.refuse(fmt::format("two tensors are called {}", own));
  }
  const std::vector<DsparkTensor> expected = dspark_tensors(files.config);
  for (const auto& [name, dims] : expected) {
    const auto found = files.tensors.find(name);
    if (found == files.tensors.end())
      files.weights.refuse(fmt::format("tensor {} is missing, expected shape {}", name, dims_text(dims)));
    if (found->second.dims != dims)
      files.weights.refuse(fmt::format("tensor {} has shape {}, expected {} as of {}", name,
                                       dims_text(found->second.dims), dims_text(dims), files.config_path));
    if (found->second.dtype == DType::kF8)
      files.weights.refuse(fmt::format("tensor {} is fp8, expected fp32, bf16 or fp16", name));
  }
  for (const auto& [name, raw] : files.tensors)
    if (std::ranges::find(expected, name, &DsparkTensor::name) == expected.end())
      files.weights.refuse(fmt::format("tensor {} is not known: this drafter is not computed", name));
  return files;
}

bool is_dspark_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::path config = folder / kDrafterConfigFile;
  if (!std::filesystem::is_regular_file(config, error)) return false;
  const Json json = parse_json(read_text_file(config, kMaxDrafterConfig), config.string());
  const auto classes = json.is_object() ? json.find("architectures") : json.end();
  return json.is_object() && classes != json.end() && classes->is_array() &&
         std::ranges::any_of(*classes, [](const Json& name) {
           return name.is_string() && name.get<std::string>().find("DSpark") != std::string::npos;
         });
}

uint64_t cache_bytes(const DsparkConfig& config, DType compute) {
  const ModelConfig& blocks = config.blocks;
  return static_cast<uint64_t>(2 * blocks.layers * blocks.kv_heads * blocks.head_dim) * size_bytes(compute);
}

uint64_t held_bytes(const DsparkFiles& files, DType compute) {
  uint64_t bytes = 0;
  const auto ffn = static_cast<uint64_t>(files.config.blocks.ffn),
             padding = static_cast<uint64_t>(padded_ffn(files.config.blocks.ffn)) - ffn;
  for (const auto& [name, raw] : files.tensors) {
    const bool padded = name.find(".mlp.") != std::string::npos;
    const uint64_t elements = numel(raw.dims) + (padded ? numel(raw.dims) / ffn * padding : 0);
    bytes += elements * size_bytes(held_dtype(raw.dtype, compute));
  }
  return bytes;
}

}  // namespace lfm2
