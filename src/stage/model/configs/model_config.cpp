// Reads config.json of Lfm2Config, Lfm2MoeConfig and Lfm3Config as transformers does: the same defaults, the same
// precedence, the same older spellings. A key that changes the mathematics is computed or refused
// (tests/unit/model/model_config_keys.json lists every key).
#include "stage/model/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "kernels/sampling.h"
#include "stage/model/configs/config_reader.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxExperts = 4096;
constexpr int64_t kMaxExpertsInAll = 65536;  // summed over the layers; each expert has three tensors

// The defaults of Lfm2Config and Lfm2MoeConfig.
constexpr double kDefaultRopeTheta = 1000000.0;
constexpr int32_t kDefaultEosToken = 2, kDefaultEosTokenOfLfm3 = 124900;

// Keys of which only one value is implemented: others change what transformers computes or which files it reads. The
// key may be absent.
struct OnlyValue {
  std::string_view key, json;
};
constexpr OnlyValue kOnlyValues[] = {
    {"attention_chunk_size", "null"}, {"attribute_map", "null"},      {"block_use_swiglu", "true"},
    {"configuration_files", "null"},  {"hidden_act", "\"silu\""},     {"is_causal", "true"},
    {"is_encoder_decoder", "false"},  {"kv_sharing_modes", "null"},   {"mlp_bias", "false"},
    {"num_kv_shared_layers", "null"}, {"number_of_conv_states", "1"}, {"partial_rotary_factor", "1"},
    {"per_layer_config", "null"},     {"sub_configs", "null"},        {"sub_configs_defaults", "null"},
    {"transformers_weights", "null"}, {"use_pos_enc", "true"}};
// The same for lfm2 and lfm2_moe alone.
constexpr OnlyValue kOnlyValuesOfLfm2[] = {{"attention_bias", "false"}, {"sliding_window", "null"}};

void expect_only_values(const ConfigReader& reader, std::span<const OnlyValue> values) {
  for (const auto& [key, json] : values) {
    const Json* value = reader.find(key);
    if (value != nullptr && *value != parse_json(json, "an expected value"))
      reader.fail(fmt::format("\"{}\" is {}, expected {}: nothing else is computed", key, json_excerpt(*value), json));
  }
}

// The classes of transformers that this program implements. Bidirectional models and others with layers of this family
// have the same model_type and keys; only the name of their class differs.
constexpr std::array<std::string_view, 5> kModelClasses = {"Lfm2ForCausalLM", "LFM2ForCausalLM", "Lfm2MoeForCausalLM",
                                                           "Lfm2Model", "Lfm3ForCausalLM"};

void expect_known_class(const ConfigReader& reader, const std::string& key, const Json& name) {
  std::string_view known = name.is_string() ? name.get_ref<const std::string&>() : std::string_view();
  known.remove_prefix(known.rfind('.') + 1);  // auto_map names a class as "file.Class" or "repository--file.Class"
  if (std::find(kModelClasses.begin(), kModelClasses.end(), known) == kModelClasses.end())
    reader.fail(fmt::format("{} holds {}, expected one of {}: only these causal models are computed",
                            json_excerpt(Json(key)), json_excerpt(name), fmt::join(kModelClasses, ", ")));
}

// The names of the model's class in the file, from `architectures` and, for remote code, from `auto_map`.
void expect_known_classes(const ConfigReader& reader) {
  if (const Json* classes = reader.find_unless_null("architectures")) {
    if (!classes->is_array())
      reader.fail(fmt::format("\"architectures\" is {}, expected a list", json_excerpt(*classes)));
    for (const Json& name : *classes) expect_known_class(reader, "architectures", name);
  }
  if (const Json* map = reader.find_unless_null("auto_map")) {
    if (!map->is_object()) reader.fail(fmt::format("\"auto_map\" is {}, expected an object", json_excerpt(*map)));
    for (const auto& [key, name] : map->items())
      if (key.starts_with("AutoModel")) expect_known_class(reader, "auto_map." + key, name);
  }
}

// What Lfm3Config makes of no layer_types.
LayerType default_layer_of_lfm3(int64_t layer) {
  if (layer % 4 == 2) return LayerType::kAttention;
  return layer % 4 == 0 && layer > 0 ? LayerType::kSlidingAttention : LayerType::kConv;
}

LayerType layer_type_of(const ConfigReader& reader, ModelType model, const Json& name) {
  if (name == "full_attention") return LayerType::kAttention;
  if (name == "conv") return LayerType::kConv;
  if (name == "sliding_attention" && model == ModelType::kLfm3) return LayerType::kSlidingAttention;
  reader.fail(fmt::format("\"layer_types\" holds {}, expected \"conv\"{} or \"full_attention\"", json_excerpt(name),
                          model == ModelType::kLfm3 ? ", \"sliding_attention\"" : ""));
}

std::vector<LayerType> read_layer_types(const ConfigReader& reader, ModelType model, int64_t layers) {
  std::vector<LayerType> types;
  if (const Json* named = reader.find_unless_null("layer_types")) {
    if (!named->is_array()) reader.fail("\"layer_types\" is no list");
    for (const Json& entry : *named) types.push_back(layer_type_of(reader, model, entry));
  } else if (model == ModelType::kLfm3) {
    for (int64_t layer = 0; layer < layers; ++layer) types.push_back(default_layer_of_lfm3(layer));
  } else if (const Json* indices = reader.find_unless_null("full_attn_idxs")) {
    if (!indices->is_array()) reader.fail("\"full_attn_idxs\" is no list");
    types.assign(static_cast<size_t>(layers), LayerType::kConv);
    for (const Json& index : *indices) {
      if (!index.is_number_unsigned() || index.get<uint64_t>() >= static_cast<uint64_t>(layers))
        reader.fail(fmt::format("\"full_attn_idxs\" holds {}, expected layers below {}", json_excerpt(index), layers));
      types[index.get<size_t>()] = LayerType::kAttention;
    }
  } else if (model == ModelType::kLfm2Moe) {
    reader.fail("\"layer_types\" is missing");
  } else {
    types.assign(static_cast<size_t>(layers), LayerType::kAttention);  // as Lfm2Config does by default
  }
  if (types.size() != static_cast<size_t>(layers))
    reader.fail(fmt::format("\"layer_types\" has {} entries, expected num_hidden_layers = {}", types.size(), layers));
  return types;
}

// The object that transformers reads (it ignores an empty one); `name` is its key.
const Json* find_rope_object(const ConfigReader& reader, std::string_view& name) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = reader.find_unless_null(key);
    if (value == nullptr) continue;
    if (!value->is_object()) reader.fail(fmt::format("\"{}\" is {}, expected an object", key, json_excerpt(*value)));
    name = key;
    if (!value->empty()) return value;
  }
  return nullptr;
}

// rope_theta inside the object overrides the one beside it, and rope_type overrides the older key "type".
double read_rope_theta(const ConfigReader& reader) {
  std::string_view name;
  const Json* object = find_rope_object(reader, name);
  if (object == nullptr) return reader.real("rope_theta", kDefaultRopeTheta);
  for (const std::string_view key : {"rope_type", "type"}) {
    const auto type = object->find(key);
    if (type == object->end()) continue;
    if (*type != "default")
      reader.fail(fmt::format("\"{}.{}\" is {}, expected \"default\"", name, key, json_excerpt(*type)));
    break;
  }
  for (const auto& [key, value] : object->items()) {
    const bool plain =
        key == "rope_theta" || key == "rope_type" || key == "type" || (key == "partial_rotary_factor" && value == 1);
    if (!plain)
      reader.fail(fmt::format("{} is {}, expected no such key: only plain RoPE over whole heads is computed",
                              json_excerpt(Json(fmt::format("{}.{}", name, key))), json_excerpt(value)));
  }
  const auto theta = object->find("rope_theta");
  return theta == object->end() ? reader.real("rope_theta", kDefaultRopeTheta)
                                : reader.real(*theta, fmt::format("{}.rope_theta", name));
}

// Lfm2MLP: ff = int(2 ff / 3), times block_ffn_dim_multiplier where given, rounded up to block_multiple_of.
int64_t read_dense_ffn(const ConfigReader& reader, bool moe) {
  int64_t ffn = reader.find("block_ff_dim") != nullptr && !moe ? reader.integer("block_ff_dim")
                                                               : reader.integer("intermediate_size");
  if (moe || !reader.boolean("block_auto_adjust_ff_dim", true)) return ffn;
  ffn = 2 * ffn / 3;
  const double scaled = reader.real("block_ffn_dim_multiplier", 1.0) * static_cast<double>(ffn);
  if (scaled > static_cast<double>(kMaxDimension))
    reader.fail(fmt::format("a feed-forward has {} columns, expected at most {}", scaled, kMaxDimension));
  ffn = static_cast<int64_t>(scaled);
  const int64_t multiple = reader.integer_or("block_multiple_of", 256);
  ffn = (ffn + multiple - 1) / multiple * multiple;
  if (ffn == 0) reader.fail("a feed-forward has 0 columns, expected at least 1");
  return ffn;
}

void read_moe(const ConfigReader& reader, ModelConfig& config) {
  const Json* dense = reader.find("num_dense_layers");  // the value 0 is allowed
  config.dense_layers =
      dense == nullptr ? 2 : static_cast<int64_t>(json_unsigned(*dense, kMaxLayers, reader.what(), "num_dense_layers"));
  config.experts = reader.integer("num_experts", kMaxExperts);
  config.top_k = reader.integer("num_experts_per_tok", kMaxExperts);
  config.moe_ffn = reader.integer("moe_intermediate_size");
  config.expert_bias = reader.boolean("use_expert_bias", true);
  config.norm_topk_prob = reader.boolean("norm_topk_prob", true);
  config.routed_scaling_factor = static_cast<float>(reader.real("routed_scaling_factor", 1.0));
  if ((config.layers - config.dense_layers) * config.experts > kMaxExpertsInAll)
    reader.fail(fmt::format("{} layers of {} experts, expected at most {} experts in all",
                            config.layers - config.dense_layers, config.experts, kMaxExpertsInAll));
  if (config.top_k > config.experts)
    reader.fail(
        fmt::format("num_experts_per_tok is {}, expected at most num_experts = {}", config.top_k, config.experts));
}

// The key holds one id, a list of ids, or null for none.
std::vector<int32_t> read_eos_tokens(const ConfigReader& reader, int32_t otherwise) {
  constexpr std::string_view kKey = "eos_token_id";
  const Json* value = reader.find(kKey);
  if (value == nullptr) return {otherwise};
  if (value->is_null()) return {};
  std::vector<int32_t> tokens;
  for (const Json& token : value->is_array() ? *value : Json::array({*value}))
    tokens.push_back(static_cast<int32_t>(json_unsigned(token, INT32_MAX, reader.what(), kKey)));
  return tokens;
}

ModelType read_model_type(const ConfigReader& reader) {
  const Json* type = reader.find("model_type");
  for (const ModelType known : {ModelType::kLfm2, ModelType::kLfm2Moe, ModelType::kLfm3})
    if (type != nullptr && *type == type_name(known)) return known;
  reader.fail(fmt::format("model_type is {}, expected \"lfm2\", \"lfm2_moe\" or \"lfm3\"",
                          type == nullptr ? "missing" : json_excerpt(*type)));
}

// Reads what Lfm2Config and Lfm2MoeConfig have besides the keys of all classes.
void read_lfm2(const ConfigReader& reader, ModelConfig& config) {
  const bool moe = config.type == ModelType::kLfm2Moe;
  config.head_dim = config.hidden / config.heads;
  if (config.hidden % config.heads != 0 || config.heads % config.kv_heads != 0 || config.head_dim % 2 != 0)
    reader.fail(fmt::format("{} attention heads and {} key-value heads do not divide hidden_size {} into even heads",
                            config.heads, config.kv_heads, config.hidden));
  if (const Json* head_dim = reader.find("head_dim"); head_dim != nullptr && *head_dim != config.head_dim)
    reader.fail(fmt::format("head_dim is {}, expected hidden_size / num_attention_heads = {}", json_excerpt(*head_dim),
                            config.head_dim));
  config.ffn = read_dense_ffn(reader, moe);
  if (moe) read_moe(reader, config);
  config.conv_length = reader.integer_or("conv_L_cache", 3, kMaxConvLength);
  config.rope.theta = static_cast<float>(read_rope_theta(reader));
  config.tied_embedding = reader.boolean("tie_embedding", reader.boolean("tie_word_embeddings", true));
}

}  // namespace

std::string_view type_name(ModelType type) {
  switch (type) {
    case ModelType::kLfm2:
      return "lfm2";
    case ModelType::kLfm2Moe:
      return "lfm2_moe";
    case ModelType::kLfm3:
      return "lfm3";
  }
  return "";
}

bool are_loaded_together(const ModelConfig& config, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return config.fp8_weights.contains(name) == config.fp8_weights.contains(names.front());
  });
}

ModelConfig parse_model_config(std::string_view json_text, const std::string& what) {
  const Json json = parse_json(json_text, what);
  if (!json.is_object()) throw Error(ExitCode::kData, what + ": no JSON object");
  const ConfigReader reader(json, what);
  ModelConfig config;
  config.type = read_model_type(reader);
  const bool lfm3 = config.type == ModelType::kLfm3;
  expect_known_classes(reader);
  expect_only_values(reader, kOnlyValues);
  if (!lfm3) expect_only_values(reader, kOnlyValuesOfLfm2);
  config.vocab = reader.integer("vocab_size", kMaxSampled);
  config.hidden = reader.integer("hidden_size");
  config.layers = reader.integer("num_hidden_layers", kMaxLayers);
  config.layer_types = read_layer_types(reader, config.type, config.layers);
  config.heads = reader.integer("num_attention_heads");
  config.kv_heads = reader.integer("num_key_value_heads");
  config.dense_layers = config.layers;
  config.conv_bias = reader.boolean("conv_bias", false);
  config.norm_eps = static_cast<float>(reader.real("norm_eps", 1e-5));
  config.max_positions = reader.integer("max_position_embeddings");
  config.eos_tokens = read_eos_tokens(reader, lfm3 ? kDefaultEosTokenOfLfm3 : kDefaultEosToken);
  lfm3 ? read_lfm3(reader, config) : read_lfm2(reader, config);
  if (const Json* fp8 = reader.find_unless_null("quantization_config"))
    config.quantization = parse_quantization(*fp8, what);
  return config;
}

}  // namespace lfm2
