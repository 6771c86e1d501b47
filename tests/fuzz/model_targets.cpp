// Checkpoints of each form, the configuration of a model, and shards.
#include "fuzz/model_targets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked_file.h"
#include "fuzz/parser_files.h"
#include "fuzz/targets.h"
#include "stage/dspark/dspark_files.h"
#include "stage/model/model_config.h"
#include "stage/model/tensor_table.h"
#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"
#include "weights-tools/formats/adapter.h"
#include "weights-tools/formats/formats.h"
#include "weights-tools/model/model_source.h"

namespace lfm2::fuzz {

namespace {

void read_everything(const CheckedFile& file, const RawTensors& tensors) {
  std::vector<std::byte> bytes;
  for (const auto& [name, tensor] : tensors) {
    bytes.resize(tensor.bytes);
    file.read(tensor.offset, bytes);
  }
}

void read_everything(const ModelSource& model) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    bytes.resize(model.tensors()[i].bytes);
    model.read(i, 0, bytes);
  }
}

// A small model, so that a mutated file can still match it.
constexpr std::string_view kConfig = R"({"model_type": "lfm2_moe", "vocab_size": 16, "hidden_size": 8,
  "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_attention_heads": 2,
  "num_key_value_heads": 1, "intermediate_size": 8, "num_dense_layers": 1, "num_experts": 2, "num_experts_per_tok": 1,
  "moe_intermediate_size": 8, "max_position_embeddings": 64})";

const Folder& model_folder() {
  static const Folder folder;
  [[maybe_unused]] static const fs::path config = folder.write("config.json", bytes_of(kConfig));
  return folder;
}

}  // namespace

void model_bin(Bytes bytes) {
  const fs::path path = model_folder().write("model.bin", bytes);
  expect_only_errors([&] {
    const CheckedFile file(path);
    read_everything(file, read_model_bin_header(file));
  });
  expect_only_errors([&] { read_everything(*open_model(path)); });
}

void safetensors(Bytes bytes) {
  const fs::path path = model_folder().write("one.safetensors", bytes);
  expect_only_errors([&] {
    const CheckedFile file(path);
    read_everything(file, read_safetensors_header(file, 0));
  });
  expect_only_errors([&] { read_everything(*open_model(path)); });
}

// The same model with fp8, so that weights, scales and their names are matched.
void fp8_safetensors(Bytes bytes) {
  static const Folder folder;
  [[maybe_unused]] static const fs::path config = [] {
    std::string text(kConfig.substr(0, kConfig.rfind('}')));
    text.replace(text.find("\"moe_intermediate_size\": 8"), 26, "\"moe_intermediate_size\": 128");
    text += R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
               "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}})";
    return folder.write("config.json", bytes_of(text));
  }();
  const fs::path path = folder.write("one.safetensors", bytes);
  expect_only_errors([&] { read_everything(*open_model(path)); });
}

void index_json(Bytes bytes) {
  static const Folder folder;
  [[maybe_unused]] static const fs::path part = [] {
    const std::string_view header =
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})";
    std::string text(1, static_cast<char>(header.size()));
    text.append(7, '\0').append(header).append(8, 'x');
    return folder.write("part.safetensors", bytes_of(text));
  }();
  const fs::path path = folder.write("model.safetensors.index.json", bytes);
  expect_only_errors([&] {
    const IndexedCheckpoint checkpoint = open_indexed_checkpoint(path);
    for (const auto& [name, tensor] : checkpoint.tensors) {
      std::vector<std::byte> data(tensor.bytes);
      checkpoint.files.at(tensor.file).read(tensor.offset, data);
    }
  });
}

void config_json(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  expect_only_errors([&] {
    const ModelConfig config = parse_model_config(text, "config.json");
    uint64_t total = 0;
    for (const TensorSpec& spec : model_tensors(config)) total = checked_add(total, numel(spec.dims), spec.name);
    if (config.layer_types.size() != static_cast<size_t>(config.layers) || total == 0) std::abort();
  });
  expect_only_errors([&] {  // the same file as that of a drafter
    const DsparkConfig config = parse_dspark_config(text, "config.json");
    uint64_t total = 0;
    for (const DsparkTensor& one : dspark_tensors(config)) total = checked_add(total, numel(one.dims), one.name);
    if (config.taps.empty() || config.taps.back() + 1 >= config.target_layers || total == 0) std::abort();
  });
}

// The tensors of an adapter of the small model: what was matched lies inside the file.
void adapter(Bytes bytes) {
  static const Folder folder;
  [[maybe_unused]] static const fs::path config = folder.write(
      "adapter_config.json",
      bytes_of(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_parameters": ["experts.gate_up_proj"]})"));
  static const ModelConfig model = parse_model_config(kConfig, "config.json");
  static const std::vector<TensorSpec> specs = model_tensors(model);
  folder.write("adapter_model.safetensors", bytes);
  expect_only_errors([&] {
    const Adapter opened(folder.path(), model);
    for (const auto& [name, update] : opened.updates()) {
      if (update.replacement) opened.read(update.replacement->tensor);
      for (const LowRankTerm& term : update.terms) {
        const TensorSpec& spec = *std::ranges::find(specs, name, &TensorSpec::name);
        for (const auto& [factor, extent] : {std::pair{term.rows, spec.dims[0]}, {term.columns, spec.dims[1]}}) {
          const uint64_t last = factor.first + (extent - 1) * factor.stride + (term.rank - 1) * factor.rank_stride;
          require(last < opened.read(factor.tensor).size(), "a factor that lies outside of its tensor");
        }
      }
    }
  });
}

void adapter_config(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  expect_only_errors([&] {
    const AdapterConfig config(text, "adapter_config.json");
    const std::string module = "model.layers.0.feed_forward.w1";
    if (config.rank(module) == 0 || !(config.scale(module) >= 0)) std::abort();
    config.targets_parameter(module);
    config.saves_module(module);
  });
}

void shards(Bytes bytes) {
  static const Folder folder;
  folder.write(shard::file_name(0, 1), bytes);
  expect_only_errors([&] {
    const ShardSet set = ShardSet::open(folder.path());
    for (const ShardTensor& tensor : set.tensors()) {
      if (!tensor.contiguous) continue;
      expect_only_errors([&] { set.read(tensor, [](uint64_t, Bytes) {}); });
    }
  });
}

}  // namespace lfm2::fuzz
