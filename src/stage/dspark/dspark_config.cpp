// Reads config.json of a drafter. Loaders of other programs accept its own keys in the root, in dflash_config or in
// dspark_config, and so does this one.
#include "stage/dspark/dspark_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "base/error.h"
#include "base/json/json.h"
#include "kernels/sampling.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxDrafterDimension = uint64_t{1} << 24, kMaxDrafterLayers = 64, kMaxTargetLayers = 4096,
                   kMaxBlock = 256;
constexpr std::array<const char*, 2> kOwnObjects = {"dflash_config", "dspark_config"};
constexpr std::string_view kDrafterClass = "Lfm2DSparkDraftModel";

// Keys of which only one value is computed. They may be absent.
struct ComputedValue {
  std::string_view key, json;
};
constexpr ComputedValue kComputedValues[] = {{"hidden_act", "\"silu\""},
                                             {"attention_bias", "false"},
                                             {"mlp_bias", "false"},
                                             {"causal", "false"},
                                             {"is_causal", "false"},
                                             {"causal_block", "false"},
                                             {"sliding_window", "null"},
                                             {"use_sliding_window", "false"},
                                             {"attention_sinks", "null"},
                                             {"projector_type", "null"},
                                             {"markov_head_type", "\"vanilla\""},
                                             {"sample_from_anchor", "true"},
                                             {"value_scale", "null"},
                                             {"attn_logit_softcapping", "null"},
                                             {"final_logit_softcapping", "null"},
                                             {"logit_softcapping", "null"},
                                             {"rope_scaling", "null"},
                                             {"partial_rotary_factor", "1"},
                                             {"quantization_config", "null"}};
// The keys of the drafter's own objects.
constexpr std::string_view kOwnKeys[] = {"target_layer_ids", "num_target_layers",  "mask_token_id",
                                         "block_size",       "markov_rank",        "enable_confidence_head",
                                         "rope_theta",       "rope_is_neox_style", "confidence_head_with_markov",
                                         "num_hidden_layers"};
// The other keys of the root that are read, and those that change no draft: transformers writes them for every model,
// or they are of training.
constexpr std::string_view kRootKeys[] = {
    "architectures", "vocab_size",        "hidden_size",  "num_attention_heads", "num_key_value_heads",
    "head_dim",      "intermediate_size", "rms_norm_eps", "rope_parameters",     "max_position_embeddings",
    "layer_types",   "dflash_config",     "dspark_config"};
constexpr std::string_view kHarmlessKeys[] = {"model_type",         "dtype",
                                              "torch_dtype",        "transformers_version",
                                              "auto_map",           "_name_or_path",
                                              "name_or_path",       "bos_token_id",
                                              "eos_token_id",       "pad_token_id",
                                              "sep_token_id",       "tie_word_embeddings",
                                              "use_cache",          "return_dict",
                                              "initializer_range",  "attention_dropout",
                                              "max_window_layers",  "output_hidden_states",
                                              "output_attentions",  "chunk_size_feed_forward",
                                              "is_encoder_decoder", "is_decoder",
                                              "problem_type",       "id2label",
                                              "label2id",           "num_anchors",
                                              "max_anchors"};

class DrafterKeys {
 public:
  DrafterKeys(const Json& json, const std::string& what) : json_(json), what_(what) {
    for (const char* name : kOwnObjects) {
      const auto own = json.find(name);
      if (own == json.end()) continue;
      if (!own->is_object()) fail(fmt::format("\"{}\" is {}, expected an object", name, json_excerpt(*own)));
      objects_.push_back(&*own);
    }
    objects_.push_back(&json);
  }

  // The value of `key` in the drafter's own objects or, where they lack it, in the root; null if there is none.
  const Json* find(std::string_view key) const {
    for (const Json* object : objects_)
      if (const auto at = object->find(key); at != object->end()) return &*at;
    return nullptr;
  }
  int64_t integer(std::string_view key, uint64_t limit, int64_t least = 1) const {
    const Json* value = find(key);
    if (value == nullptr) fail(fmt::format("\"{}\" is missing", key));
    const uint64_t number = json_unsigned(*value, limit, what_, key);
    if (std::cmp_less(number, least)) fail(fmt::format("\"{}\" is {}, expected at least {}", key, number, least));
    return static_cast<int64_t>(number);
  }
  float real(std::string_view key, const Json* value) const {
    if (value == nullptr) fail(fmt::format("\"{}\" is missing", key));
    const double number = value->is_number() ? value->get<double>() : 0;
    if (!(number <= double{std::numeric_limits<float>::max()} && static_cast<float>(number) > 0))
      fail(fmt::format("\"{}\" is {}, expected a positive number that fp32 holds", key, json_excerpt(*value)));
    return static_cast<float>(number);
  }
  bool boolean(std::string_view key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(fmt::format("\"{}\" is {}, expected true or false", key, json_excerpt(*value)));
    return value->get<bool>();
  }
  void expect_computed() const {
    const Json* classes = find("architectures");
    if (classes == nullptr || *classes != Json::array({kDrafterClass}))
      fail(fmt::format("\"architectures\" is {}, expected [\"{}\"]: only these drafters are computed",
                       classes == nullptr ? "missing" : json_excerpt(*classes), kDrafterClass));
    expect_known_keys();
    for (const auto& [key, json] : kComputedValues) {
      const Json* value = find(key);
      if (value != nullptr && *value != parse_json(json, "an expected value"))
        fail(fmt::format("\"{}\" is {}, expected {}: nothing else is computed", key, json_excerpt(*value), json));
    }
    const Json* types = find("layer_types");
    if (types == nullptr || types->is_null()) return;
    const bool full =
        types->is_array() && std::ranges::all_of(*types, [](const Json& type) { return type == "full_attention"; });
    if (!full || std::cmp_not_equal(types->size(), integer("num_hidden_layers", kMaxDrafterLayers)))
      fail(fmt::format("\"layer_types\" is {}, expected \"full_attention\" for each of num_hidden_layers",
                       json_excerpt(*types)));
  }
  // rope_theta beside other keys, or within rope_parameters, which may have nothing else than the plain type.
  float rope_theta() const {
    const Json* object = find("rope_parameters");
    if (object == nullptr || object->is_null()) return real("rope_theta", find("rope_theta"));
    if (!object->is_object()) fail(fmt::format("\"rope_parameters\" is {}, expected an object", json_excerpt(*object)));
    for (const auto& [key, value] : object->items())
      if (key != "rope_theta" && !(key == "rope_type" && value == "default"))
        fail(fmt::format("{} is {}, expected no such key: only plain RoPE is computed",
                         json_excerpt(Json("rope_parameters." + key)), json_excerpt(value)));
    const auto theta = object->find("rope_theta");
    return real("rope_theta", theta == object->end() ? find("rope_theta") : &*theta);
  }
  std::vector<int64_t> taps(int64_t target_layers) const {
    const Json* ids = find("target_layer_ids");
    std::vector<int64_t> taps;
    if (ids != nullptr && ids->is_array())
      for (const Json& id : *ids)
        if (id.is_number_unsigned() && id.get<uint64_t>() <= kMaxTargetLayers) taps.push_back(id.get<int64_t>());
    const bool whole = ids != nullptr && ids->is_array() && taps.size() == ids->size() && !taps.empty();
    // The hidden state after the last layer is only known normed, so drafters cannot have it.
    if (!whole || std::ranges::adjacent_find(taps, std::ranges::greater_equal()) != taps.end() ||
        taps.back() + 1 >= target_layers)
      fail(fmt::format("\"target_layer_ids\" is {}, expected ascending layers before the last of {}",
                       ids == nullptr ? "missing" : json_excerpt(*ids), target_layers));
    return taps;
  }
  [[noreturn]] void fail(const std::string& message) const { throw Error(ExitCode::kData, what_ + ": " + message); }

 private:
  static bool is_in(std::span<const std::string_view> keys, std::string_view key) {
    return std::ranges::find(keys, key) != keys.end();
  }
  static bool is_own(std::string_view key) {
    return is_in(kOwnKeys, key) ||
           std::ranges::find(kComputedValues, key, &ComputedValue::key) != std::end(kComputedValues);
  }
  void expect_known_keys() const {
    for (const char* name : kOwnObjects)
      if (const auto own = json_.find(name); own != json_.end())
        for (const auto& [key, value] : own->items())
          if (!is_own(key)) refuse(fmt::format("{}.{}", name, key));
    for (const auto& [key, value] : json_.items())
      if (!value.is_null() && !is_own(key) && !is_in(kRootKeys, key) && !is_in(kHarmlessKeys, key)) refuse(key);
  }
  [[noreturn]] void refuse(std::string_view key) const {
    fail(fmt::format("\"{}\" is not known, so its drafts may not be computed: expected another drafter", key));
  }

  const Json& json_;
  const std::string& what_;
  std::vector<const Json*> objects_;  // in the order of precedence
};

}  // namespace

DsparkConfig parse_dspark_config(std::string_view json_text, const std::string& what) {
  const Json json = parse_json(json_text, what);
  if (!json.is_object()) throw Error(ExitCode::kData, what + ": no JSON object");
  const DrafterKeys keys(json, what);
  keys.expect_computed();
  DsparkConfig config;
  ModelConfig& blocks = config.blocks;
  blocks.vocab = keys.integer("vocab_size", kMaxSampled);
  blocks.hidden = keys.integer("hidden_size", kMaxDrafterDimension);
  blocks.layers = blocks.dense_layers = keys.integer("num_hidden_layers", kMaxDrafterLayers);
  blocks.layer_types.assign(static_cast<size_t>(blocks.layers), LayerType::kAttention);
  blocks.heads = keys.integer("num_attention_heads", kMaxDrafterDimension);
  blocks.kv_heads = keys.integer("num_key_value_heads", kMaxDrafterDimension);
  blocks.head_dim =
      keys.find("head_dim") != nullptr ? keys.integer("head_dim", kMaxDrafterDimension) : blocks.hidden / blocks.heads;
  if (blocks.heads % blocks.kv_heads != 0 || blocks.head_dim % 2 != 0 || blocks.head_dim == 0)
    keys.fail(
        fmt::format("{} attention heads of {} and {} key-value heads, expected heads of an even size, in whole "
                    "groups",
                    blocks.heads, blocks.head_dim, blocks.kv_heads));
  blocks.ffn = keys.integer("intermediate_size", kMaxDrafterDimension);
  blocks.conv_length = 1;  // there is no convolution
  blocks.norm_eps = keys.real("rms_norm_eps", keys.find("rms_norm_eps"));
  blocks.rope.theta = keys.rope_theta();
  blocks.max_positions = keys.integer("max_position_embeddings", std::numeric_limits<int32_t>::max());
  config.target_layers = keys.integer("num_target_layers", kMaxTargetLayers);
  config.taps = keys.taps(config.target_layers);
  config.block_size = keys.integer("block_size", kMaxBlock);
  config.mask_token = static_cast<int32_t>(keys.integer("mask_token_id", static_cast<uint64_t>(blocks.vocab) - 1, 0));
  config.markov_rank = keys.integer("markov_rank", kMaxDrafterDimension);
  config.rope_pairs = !keys.boolean("rope_is_neox_style", true);
  return config;
}

void expect_target(const DsparkConfig& config, const ModelConfig& target, const std::string& what) {
  const auto expect_equal = [&](std::string_view key, int64_t found, int64_t expected) {
    if (found != expected)
      throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is {}, but the model has {}: expected a drafter that was "
                                               "made for this model",
                                               what, key, found, expected));
  };
  expect_equal("vocab_size", config.blocks.vocab, target.vocab);
  expect_equal("hidden_size", config.blocks.hidden, target.hidden);
  expect_equal("num_target_layers", config.target_layers, target.layers);
}

}  // namespace lfm2
