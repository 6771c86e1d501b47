// Reads the three forms that llm-compressor, compressed-tensors and transformers write. Their objects have many keys:
// each must have its only supported value, or is known to change nothing, or is refused.
#include "stage/model/quantization.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <set>

#include "base/error.h"
#include "base/json/json.h"

namespace lfm2 {

namespace {

using Scheme = Quantization::Scheme;
using Method = Quantization::Method;

// The keys of one object. Keys that were not read are unknown.
class Fields {
 public:
  using Values = std::initializer_list<std::string_view>;  // JSON texts

  Fields(const Json& object, std::string path, const std::string& what)
      : object_(object), path_(std::move(path)), what_(what) {
    if (!object.is_object())
      fail(fmt::format("{} is {}, expected an object", json_excerpt(Json(path_)), json_excerpt(object)));
  }
  // The value of a key; null if it is absent. JSON's null counts as absent.
  const Json* find(std::string_view key) {
    known_.emplace(key);
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  Fields object(std::string_view key) {
    static const Json kNull;
    const Json* value = find(key);
    return {value == nullptr ? kNull : *value, path_of(key), what_};
  }
  // One of the values, or nothing.
  void allow(std::string_view key, Values values = {}) {
    const Json* value = find(key);
    if (value != nullptr && !is_one_of(*value, values)) refuse(key, *value, values, "null");
  }
  void require(std::string_view key, Values values) {
    const Json* value = find(key);
    if (value == nullptr || !is_one_of(*value, values)) refuse(key, value == nullptr ? Json() : *value, values, "");
  }
  void skip(Values keys) { known_.insert(keys.begin(), keys.end()); }  // keys that change nothing
  std::set<std::string> texts(std::string_view key) {
    std::set<std::string> texts;
    const Json* list = find(key);
    if (list == nullptr) return texts;
    for (const Json& text : list->is_array() ? *list : Json::array({*list})) {
      if (!list->is_array() || !text.is_string())
        fail(fmt::format("{} is {}, expected a list of texts", quoted(key), json_excerpt(*list)));
      texts.insert(text.get<std::string>());
    }
    return texts;
  }
  void refuse_others() const {
    for (const auto& [key, value] : object_.items())
      if (!known_.contains(key))
        fail(fmt::format("{} is {}, expected no such key: it is not known", quoted(key), json_excerpt(value)));
  }
  std::string path_of(std::string_view key) const { return fmt::format("{}.{}", path_, key); }
  [[noreturn]] void fail(const std::string& message) const { throw Error(ExitCode::kData, what_ + ": " + message); }

 private:
  static bool is_one_of(const Json& value, Values values) {
    return std::any_of(values.begin(), values.end(),
                       [&](std::string_view text) { return value == parse_json(text, "an expected value"); });
  }
  std::string quoted(std::string_view key) const { return json_excerpt(Json(path_of(key))); }
  [[noreturn]] void refuse(std::string_view key, const Json& value, Values values, std::string_view otherwise) const {
    std::vector<std::string_view> expected(values);
    if (!otherwise.empty()) expected.push_back(otherwise);
    fail(fmt::format("{} is {}, expected {}: nothing else is computed", quoted(key), json_excerpt(value),
                     fmt::join(expected, " or ")));
  }

  const Json& object_;
  std::string path_;
  const std::string& what_;
  std::set<std::string, std::less<>> known_;
};

constexpr std::string_view kBlockText = "[128,128]";
constexpr std::string_view kKey = "quantization_config";

// One group of modules: returns the scheme of its weights, after checking that activations are quantised to match.
Scheme read_group(const Json& json, const std::string& path, const std::string& what) {
  Fields group(json, path, what);
  group.allow("format", {"\"float-quantized\""});
  group.allow("output_activations");
  group.skip({"targets"});  // the type of a tensor decides whether it is fp8, not this list
  Fields weights = group.object("weights");
  weights.require("num_bits", {"8"});
  weights.require("type", {"\"float\""});
  weights.require("strategy", {"\"channel\"", "\"block\""});
  const Scheme scheme = json["weights"]["strategy"] == "block" ? Scheme::kBlock : Scheme::kChannel;
  weights.allow("symmetric", {"true"});
  weights.allow("dynamic", {"false"});
  weights.allow("group_size");
  weights.allow("actorder");
  if (scheme == Scheme::kBlock)
    weights.require("block_structure", {kBlockText});
  else
    weights.allow("block_structure");
  weights.skip({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});  // how scales were computed and are stored
  weights.refuse_others();
  Fields inputs = group.object("input_activations");
  inputs.require("num_bits", {"8"});
  inputs.require("type", {"\"float\""});
  inputs.require("dynamic", {"true"});
  inputs.allow("symmetric", {"true"});
  inputs.allow("actorder");
  inputs.allow("block_structure");
  if (scheme == Scheme::kBlock) {
    inputs.require("strategy", {"\"group\""});
    inputs.require("group_size", {"128"});
  } else {
    inputs.require("strategy", {"\"token\""});
    inputs.allow("group_size");
  }
  inputs.skip({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
  inputs.refuse_others();
  group.refuse_others();
  return scheme;
}

void read_compressed_tensors(Fields& fields, Quantization& quantization, const std::string& what) {
  fields.require("format", {"\"float-quantized\""});
  fields.allow("quantization_status", {"\"compressed\""});
  fields.allow("kv_cache_scheme");
  fields.allow("sparsity_config", {"{}"});
  fields.allow("transform_config", {"{}"});
  fields.allow("moe_sparsity_config");
  fields.skip({"version", "global_compression_ratio"});
  quantization.ignored = fields.texts("ignore");
  const Json* groups = fields.find("config_groups");
  const std::string path = fields.path_of("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty())
    fields.fail(fmt::format("\"{}\" is {}, expected an object of groups", path,
                            groups == nullptr ? "missing" : json_excerpt(*groups)));
  for (const auto& [key, group] : groups->items()) {
    const Scheme scheme = read_group(group, fmt::format("{}.{}", path, key), what);
    if (quantization.scheme != Scheme::kNone && quantization.scheme != scheme)
      fields.fail(fmt::format("\"{}\" holds groups of both schemes, channel and block, expected one of them", path));
    quantization.scheme = scheme;
  }
}

void read_fp8(Fields& fields, Quantization& quantization) {
  fields.require("weight_block_size", {kBlockText});
  fields.require("activation_scheme", {"\"dynamic\""});
  fields.allow("scale_fmt", {"\"float\""});
  fields.allow("fmt", {"\"e4m3\""});
  fields.allow("expert_dtype", {"\"fp8\""});
  fields.allow("dequantize", {"false"});
  fields.allow("modules_to_convert");
  quantization.ignored = fields.texts("modules_to_not_convert");
  quantization.ignored.merge(fields.texts("ignored_layers"));
  quantization.scheme = Scheme::kBlock;
}

}  // namespace

std::string_view name(Scheme scheme) {
  return scheme == Scheme::kNone ? "none" : scheme == Scheme::kChannel ? "channel" : "block";
}

std::string_view name(Method method) {
  return method == Method::kNone ? "none" : method == Method::kFp8 ? "fp8" : "compressed-tensors";
}

Quantization parse_quantization(const Json& json, const std::string& what) {
  Fields fields(json, std::string(kKey), what);
  fields.require("quant_method", {"\"compressed-tensors\"", "\"fp8\""});
  Quantization quantization;
  if (json["quant_method"] == "fp8") {
    quantization.method = Method::kFp8;
    read_fp8(fields, quantization);
  } else {
    quantization.method = Method::kCompressedTensors;
    read_compressed_tensors(fields, quantization, what);
  }
  fields.refuse_others();
  return quantization;
}

}  // namespace lfm2
