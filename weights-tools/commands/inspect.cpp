// The command inspect: lists the content of a model or a folder of shards, for people and for programs. Reads no
// tensor.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "base/bytes_text.h"
#include "base/error.h"
#include "base/json/json.h"
#include "stage/dspark/dspark_files.h"
#include "stage/shards/fp8_tensors.h"
#include "stage/shards/shard_reader.h"
#include "weights-tools/commands/commands.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

namespace {

struct LayerSummary {
  size_t tensors = 0;
  uint64_t parameters = 0, bytes = 0;
  std::map<std::string_view, uint64_t> dtype_bytes;

  void add(const SourceTensor& tensor) {
    ++tensors;
    if (!is_scale(tensor.spec)) parameters += numel(tensor.spec.dims);
    bytes += tensor.bytes;
    dtype_bytes[name(tensor.dtype)] += tensor.bytes;
  }
  std::string dtypes() const {  // such as "bf16+fp32"
    std::vector<std::string_view> names;
    for (const auto& [dtype, count] : dtype_bytes) names.push_back(dtype);
    return fmt::format("{}", fmt::join(names, "+"));
  }
};

// A summary for each place in the model: embedding, layers, head.
std::map<int64_t, LayerSummary> summarize(const ModelSource& model) {
  std::map<int64_t, LayerSummary> layers;
  for (const SourceTensor& tensor : model.tensors()) layers[tensor.spec.layer].add(tensor);
  return layers;
}

LayerSummary total(const ModelSource& model) {
  LayerSummary sum;
  for (const SourceTensor& tensor : model.tensors()) sum.add(tensor);
  return sum;
}

std::string layer_name(int64_t layer, const ModelConfig& config) {
  if (layer == kEmbeddingLayer) return "embedding";
  return layer == head_layer(config) ? "head" : fmt::format("{}", layer);
}

std::string layer_kind(int64_t layer, const ModelConfig& config) {
  if (layer == kEmbeddingLayer) return "";
  if (layer == head_layer(config)) return config.tied_embedding ? "norm (tied to the embedding)" : "norm, lm_head";
  const auto mixer = [&] {
    switch (config.layer_types[static_cast<size_t>(layer)]) {
      case LayerType::kConv:
        return "conv";
      case LayerType::kAttention:
        return "attention";
      case LayerType::kSlidingAttention:
        break;
    }
    return "sliding attention";
  };
  return fmt::format("{} + {}", mixer(), config.is_dense(layer) ? "dense" : "moe");
}

void print_config(const ModelConfig& c) {
  fmt::print("model      {}: {} layers, hidden {}, vocab {}, LM head {}\n", c.type_name(), c.layers, c.hidden, c.vocab,
             c.tied_embedding ? "tied" : "untied");
  fmt::print("attention  {} heads of {}, {} key-value heads, rope base {}, up to {} positions\n", c.heads, c.head_dim,
             c.kv_heads, c.rope.theta, c.max_positions);
  if (c.window > 0) fmt::print("sliding    window {}, rope base {}\n", c.window, c.sliding_rope.theta);
  if (!c.note.empty()) fmt::print("note       {}\n", c.note);
  fmt::print("conv       length {}{}\n", c.conv_length, c.conv_bias ? ", with bias" : "");
  if (c.dense_layers > 0) fmt::print("dense      {} layers, ffn {}\n", c.dense_layers, c.ffn);
  if (c.dense_layers < c.layers)
    fmt::print("moe        {} layers, {} experts, {} for each token, ffn {}\n", c.layers - c.dense_layers, c.experts,
               c.top_k, c.moe_ffn);
  if (c.quantization.scheme != Quantization::Scheme::kNone)
    fmt::print("fp8        scales by {}, in the form of {}\n", name(c.quantization.scheme),
               name(c.quantization.method));
}

void print_stages(const ShardSet& shards) {
  fmt::print("\nsplit      {}\n{:<24} {:>10} {:>8} {:>12}\n", shards.split_id(), "file", "layers", "tensors", "bytes");
  for (size_t stage = 0; stage < shards.stages().size(); ++stage) {
    const LayerRange range = shards.stages()[stage];
    size_t tensors = 0;
    uint64_t bytes = 0;
    for (const ShardTensor& tensor : shards.tensors()) {
      if (tensor.file != stage) continue;
      ++tensors;
      bytes += tensor.bytes;
    }
    fmt::print("{:<24} {:>10} {:>8} {:>12}\n", shards.files()[stage].path().filename().string(),
               fmt::format("{}-{}", range.first, range.end() - 1), tensors, bytes_text(bytes));
  }
}

void print_adapters(const ShardSet& shards) {
  for (const AdapterId& adapter : shards.adapters())
    fmt::print("adapter    {}, config {}, weights {}\n", printable(adapter.name), adapter.config, adapter.weights);
}

void print_text_files(const ShardSet& shards) {
  if (shards.text_files().empty()) return;
  fmt::print("\n{:<41} {}\n", "text file", "XXH3-128");
  for (const auto& [name, checksum] : shards.text_files()) fmt::print("{:<41} {}\n", name, checksum);
}

void print_layers(const ModelSource& model) {
  fmt::print("\n{:<10} {:<30} {:>8} {:>14} {:>12}  {}\n", "layer", "kind", "tensors", "parameters", "bytes", "type");
  for (const auto& [layer, summary] : summarize(model))
    fmt::print("{:<10} {:<30} {:>8} {:>14} {:>12}  {}\n", layer_name(layer, model.config()),
               layer_kind(layer, model.config()), summary.tensors, summary.parameters, bytes_text(summary.bytes),
               summary.dtypes());
  const LayerSummary sum = total(model);
  fmt::print("{:<10} {:<30} {:>8} {:>14} {:>12}  {}\n", "all", "", sum.tensors, sum.parameters, bytes_text(sum.bytes),
             sum.dtypes());
}

OrderedJson describe(const ModelSource& model, const std::string& path, const ShardSet* shards) {
  const LayerSummary sum = total(model);
  OrderedJson json = {{"path", path},
                      {"form", model.form()},
                      {"parameters", sum.parameters},
                      {"bytes", sum.bytes},
                      {"config", parse_ordered_json(model.config_text(), path)}};
  if (const Quantization& fp8 = model.config().quantization; fp8.scheme != Quantization::Scheme::kNone)
    json["quantization"] = {
        {"scheme", name(fp8.scheme)}, {"quant_method", name(fp8.method)}, {"left_out", model.left_out()}};
  if (shards != nullptr) {
    json["split_id"] = shards->split_id();
    json["text_files"] = shards->text_files();
    if (!shards->adapters().empty()) json["adapters"] = adapters_json(shards->adapters());
    json["stages"] = OrderedJson::array();
    for (size_t stage = 0; stage < shards->stages().size(); ++stage)
      json["stages"].push_back({{"file", shards->files()[stage].path().filename().string()},
                                {"layer_first", shards->stages()[stage].first},
                                {"layer_count", shards->stages()[stage].count},
                                {"file_bytes", shards->files()[stage].size()}});
  }
  json["tensors"] = OrderedJson::array();
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    const SourceTensor& tensor = model.tensors()[i];
    OrderedJson entry = {{"name", tensor.spec.name},
                         {"dtype", name(tensor.dtype)},
                         {"shape", tensor.spec.dims},
                         {"bytes", tensor.bytes}};
    if (shards != nullptr) {
      entry["stage"] = shards->tensors()[i].file;
      entry["offset"] = shards->tensors()[i].offset;
      entry["xxh3_128"] = tensor.checksum;
    }
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

void run_inspect(const InspectOptions& options) {
  if (is_dspark_folder(options.model)) return run_inspect_drafter(options);
  const auto model = open_model(options.model, options.config, FolderForm::kShards);
  std::optional<ShardSet> shards;
  if (model->form() == "shards") shards = ShardSet::open(options.model);
  if (options.json) {
    fmt::print("{}\n", json_text(describe(*model, options.model, shards ? &*shards : nullptr), 2));
    return;
  }
  print_config(model->config());
  if (shards) {
    print_adapters(*shards);
    print_stages(*shards);
    print_text_files(*shards);
  }
  print_layers(*model);
}

}  // namespace lfm2
