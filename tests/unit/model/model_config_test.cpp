// config.json in all its spellings, and values that must be refused.
#include "stage/model/model_config.h"

#include "base/json/json.h"
#include "stage/model/tensor_table.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;

OrderedJson golden_config(const std::string& name) {
  return OrderedJson::parse(test::read_bytes(test::golden_dir() / name / "config.json"));
}
ModelConfig parse_config(const OrderedJson& json) { return parse_model_config(json.dump(), "config.json"); }

uint64_t parameters(const ModelConfig& config) {
  uint64_t sum = 0;
  for (const TensorSpec& spec : model_tensors(config)) sum += numel(spec.dims);
  return sum;
}

TEST(ModelConfigTest, ReadsThePublishedModel) {
  const ModelConfig c = parse_model_config(builtin_model_config("lfm2-8b-a1b"), "built-in");
  EXPECT_EQ(c.type, ModelType::kLfm2Moe);
  EXPECT_EQ(c.vocab, 65536);
  EXPECT_EQ(c.hidden, 2048);
  EXPECT_EQ(c.layers, 24);
  for (int64_t layer = 0; layer < 24; ++layer) {
    const bool attention = std::set<int64_t>{2, 6, 10, 14, 18, 21}.contains(layer);
    EXPECT_EQ(c.layer_types[static_cast<size_t>(layer)] == LayerType::kAttention, attention) << layer;
    EXPECT_EQ(c.is_dense(layer), layer < 2);
  }
  EXPECT_EQ(
      std::vector<int64_t>({c.heads, c.kv_heads, c.head_dim, c.ffn, c.experts, c.top_k, c.moe_ffn, c.conv_length}),
      std::vector<int64_t>({32, 8, 64, 7168, 32, 4, 1792, 3}));
  EXPECT_TRUE(c.expert_bias && c.norm_topk_prob && c.tied_embedding);
  EXPECT_FALSE(c.conv_bias);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.rope.theta, 1e6f);
  EXPECT_EQ(c.max_positions, 128000);
  EXPECT_EQ(model_tensors(c).size(), 2302u);
  EXPECT_EQ(parameters(c) - 22 * 32, 8'339'929'856u);  // the published count leaves the 22 expert biases out
}

TEST(ModelConfigTest, AdjustsTheDenseFfn) {
  const ModelConfig c = parse_model_config(builtin_model_config("lfm2-350m"), "built-in");
  EXPECT_EQ(c.type, ModelType::kLfm2);
  EXPECT_EQ(c.ffn, 4608);  // 2/3 of 6656 is 4437, rounded up to a multiple of 256
  EXPECT_EQ(c.dense_layers, c.layers);
  EXPECT_EQ(parameters(c), 354'483'968u);
}

TEST(ModelConfigTest, BuiltInModelsHaveThePublishedNumbersOfParameters) {
  const auto count = [](std::string_view name) {
    return parameters(parse_model_config(builtin_model_config(name), std::string(name)));
  };
  EXPECT_EQ(count("lfm2-1.2b"), 1'170'340'608u);
  EXPECT_EQ(count("lfm2-2.6b"), 2'569'272'320u);
  EXPECT_EQ(count("lfm2.5-8b-a1b") - 22 * 32, 8'467'856'128u);  // without the expert biases
}

TEST(ModelConfigTest, BuiltInNamesAreThoseListed) {
  EXPECT_TRUE(builtin_model_config("lfm2-70b").empty());
  std::string names(builtin_models());
  names.erase(std::remove(names.begin(), names.end(), ' '), names.end());
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ',');)
    EXPECT_NO_THROW(parse_model_config(builtin_model_config(name), name));
}

TEST(ModelConfigTest, AcceptsOlderSpellings) {
  const ModelConfig now = parse_config(golden_config("tiny-moe"));
  OrderedJson old = golden_config("tiny-moe");
  old.erase("rope_parameters");
  old["rope_theta"] = 1000000.0;
  old.erase("tie_word_embeddings");
  old["tie_embedding"] = true;
  old.erase("layer_types");
  old["full_attn_idxs"] = {2, 5};
  EXPECT_EQ(parse_config(old), now);
  old["rope_theta"] = 500000.0;
  EXPECT_NE(parse_config(old), now);
  old["rope_theta"] = 1000000.0;
  old["tie_embedding"] = false;
  EXPECT_FALSE(parse_config(old).tied_embedding);
}

// Expects what transformers reads.
TEST(ModelConfigTest, ReadsRopeInTheOrderOfTransformers) {
  struct Case {
    OrderedJson keys;  // put into a configuration without any key of RoPE
    float theta;
  };
  const OrderedJson null = nullptr, empty = OrderedJson::object();
  const std::vector<Case> cases = {
      {OrderedJson::object(), 1e6f},
      {{{"rope_theta", 3}}, 3.0f},
      {{{"rope_parameters", null}, {"rope_theta", 3}}, 3.0f},
      {{{"rope_parameters", empty}, {"rope_theta", 3}}, 3.0f},
      {{{"rope_parameters", {{"rope_theta", 7}}}, {"rope_theta", 3}}, 7.0f},
      {{{"rope_parameters", {{"rope_theta", 7}}}, {"rope_theta", null}}, 7.0f},
      {{{"rope_scaling", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}, 5e5f},
      {{{"rope_scaling", {{"type", "default"}}}}, 1e6f},
      {{{"rope_scaling", {{"type", "default"}}}, {"rope_theta", 3}}, 3.0f},
      {{{"rope_scaling", {{"type", "default"}}}, {"rope_parameters", {{"rope_theta", 7}}}}, 1e6f},
      {{{"rope_scaling", {{"rope_theta", 5}}}, {"rope_parameters", {{"rope_theta", 7}}}}, 5.0f},
      {{{"rope_scaling", empty}, {"rope_parameters", {{"rope_theta", 7}}}}, 7.0f},
      {{{"rope_scaling", null}, {"rope_parameters", {{"rope_theta", 7}}}}, 7.0f},
      {{{"rope_parameters", {{"rope_type", "default"}, {"type", "linear"}, {"rope_theta", 7}}}}, 7.0f},
      {{{"rope_parameters", {{"partial_rotary_factor", 1.0}}}, {"partial_rotary_factor", 1.0}}, 1e6f},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.keys.dump());
    OrderedJson json = golden_config("tiny-moe");
    json.erase("rope_parameters");
    for (const auto& [key, value] : c.keys.items()) json[key] = value;
    EXPECT_EQ(parse_config(json).rope.theta, c.theta);
  }
}

TEST(ModelConfigTest, RefusesRopeThatIsNotPlain) {
  const auto refused = [](const OrderedJson& keys, const std::vector<std::string>& parts) {
    SCOPED_TRACE(keys.dump());
    OrderedJson json = golden_config("tiny-moe");
    json.erase("rope_parameters");
    for (const auto& [key, value] : keys.items()) json[key] = value;
    expect_error([&] { parse_config(json); }, ExitCode::kData, parts);
  };
  for (const std::string type : {"linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}) {
    refused({{"rope_scaling", {{"type", type}, {"factor", 4.0}}}}, {"rope_scaling.type", type, "expected \"default\""});
    refused({{"rope_parameters", {{"rope_type", type}, {"factor", 4.0}}}}, {"rope_parameters.rope_type", type});
    refused({{"rope_scaling", {{"rope_type", type}}}, {"rope_parameters", {{"rope_type", "default"}}}}, {type});
    refused({{"rope_parameters", {{"rope_type", type}, {"type", "default"}}}}, {type});
  }
  refused({{"rope_parameters", {{"rope_type", nullptr}}}}, {"rope_parameters.rope_type", "null"});
  refused({{"rope_parameters", {{"rope_theta", nullptr}}}, {"rope_theta", 3}}, {"rope_parameters.rope_theta", "null"});
  refused({{"rope_theta", nullptr}}, {"rope_theta", "null"});
  refused({{"rope_parameters", {{"full_attention", {{"rope_type", "yarn"}}}, {"conv", nullptr}}}}, {"conv"});
  refused({{"rope_parameters", {{"full_attention", {{"rope_theta", 5e5}}}}}}, {"rope_parameters.full_attention"});
  refused({{"rope_parameters", {{"mrope_section", {1, 2}}}}}, {"rope_parameters.mrope_section"});
  refused({{"rope_parameters", {{std::string(5000, 'x') + "\n", 1}}}}, {"rope_parameters.xxx"});
  refused({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, {"partial_rotary_factor", "0.5"});
  refused({{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor", "0.5", "expected 1"});
  refused({{"rope_scaling", 4.0}}, {"rope_scaling", "an object"});
}

TEST(ModelConfigTest, TieEmbeddingGoesBeforeTieWordEmbeddings) {
  for (const bool tied : {false, true}) {
    OrderedJson json = golden_config("tiny-moe");
    json["tie_word_embeddings"] = !tied;
    json["tie_embedding"] = tied;
    EXPECT_EQ(parse_config(json).tied_embedding, tied);
  }
  OrderedJson json = golden_config("tiny-moe");
  json["tie_embedding"] = nullptr;  // transformers reads the null, and refuses it
  expect_error([&] { parse_config(json); }, ExitCode::kData, {"tie_embedding", "null"});
}

TEST(ModelConfigTest, EndsTextsWithTheTokensOfTheModelOrOfItsClass) {
  for (const std::string name : {"tiny-moe", "tiny-dense"}) {
    OrderedJson json = golden_config(name);
    json["eos_token_id"] = 7;
    EXPECT_EQ(parse_config(json).eos_tokens, std::vector<int32_t>{7});
    json["eos_token_id"] = {7, 3};
    EXPECT_EQ(parse_config(json).eos_tokens, (std::vector<int32_t>{7, 3}));
    json["eos_token_id"] = nullptr;
    EXPECT_EQ(parse_config(json).eos_tokens, std::vector<int32_t>{});
    json.erase("eos_token_id");
    EXPECT_EQ(parse_config(json).eos_tokens, std::vector<int32_t>{2});
  }
}

// Where no key names the layers, Lfm2Config makes all of them attention, and Lfm2MoeConfig has none.
TEST(ModelConfigTest, NamesOfLayersAreNeededWhereTheClassHasNone) {
  OrderedJson dense = golden_config("tiny-dense"), moe = golden_config("tiny-moe");
  dense.erase("layer_types");
  EXPECT_EQ(parse_config(dense).layer_types, std::vector<LayerType>(5, LayerType::kAttention));
  moe.erase("layer_types");
  expect_error([&] { parse_config(moe); }, ExitCode::kData, {"layer_types", "missing"});
}

// Numbers that are impossible only in combination, or only after a conversion.
TEST(ModelConfigTest, RefusesWhatNoModelCanBe) {
  const auto refused = [](std::string_view model, const std::vector<std::pair<std::string, OrderedJson>>& changes,
                          const std::string& part) {
    OrderedJson json = OrderedJson::parse(builtin_model_config(model));
    for (const auto& [key, value] : changes) json[key] = value;
    test::expect_error([&] { parse_model_config(json.dump(), "config.json"); }, ExitCode::kData, {"config.json", part});
  };
  refused("lfm2-350m", {{"block_ffn_dim_multiplier", 1e300}}, "fp32");
  refused("lfm2-350m", {{"block_ffn_dim_multiplier", 1e30}}, "columns");
  refused("lfm2-350m", {{"block_ffn_dim_multiplier", 1e-30}}, "columns");
  refused("lfm2-350m", {{"norm_eps", 1e300}}, "fp32");
  refused("lfm2-350m", {{"norm_eps", 1e-300}}, "fp32");
  refused("lfm2-350m", {{"rope_theta", 1e39}}, "fp32");
  std::vector<std::string> types(4000, "conv");
  refused("lfm2-tiny", {{"num_hidden_layers", 4000}, {"layer_types", types}, {"num_experts", 4000}}, "experts in all");
}

// Bidirectional models differ from causal ones in nothing but the name of their class.
TEST(ModelConfigTest, ComputesCausalModelsOnly) {
  const auto with = [](const std::string& key, const OrderedJson& value) {
    OrderedJson json = golden_config("tiny-dense");
    json.erase("architectures");
    json[key] = value;
    return json;
  };
  const ModelConfig plain = parse_config(golden_config("tiny-dense"));
  for (const OrderedJson& value : std::initializer_list<OrderedJson>{nullptr,
                                                                     OrderedJson::array(),
                                                                     {"Lfm2ForCausalLM"},
                                                                     {"LFM2ForCausalLM"},
                                                                     {"Lfm2MoeForCausalLM"},
                                                                     {"Lfm2Model"}})
    EXPECT_EQ(parse_config(with("architectures", value)), plain) << value;
  for (const std::string name :
       {"Lfm2BidirectionalModel", "Lfm2BidirectionalForMaskedLM", "Lfm2BidirForSequenceRouting",
        "Lfm2ForSequenceClassification", "lfm2forcausallm", ""}) {
    const std::string quoted = "\"" + name + "\"";
    for (const OrderedJson& value : {OrderedJson::array({name}), OrderedJson::array({"Lfm2Model", name})})
      expect_error([&] { parse_config(with("architectures", value)); }, ExitCode::kData,
                   {"config.json", "architectures", quoted, "Lfm2ForCausalLM"});
    expect_error(
        [&] {
          parse_config(with("auto_map", {{"AutoModel", "modeling." + name}}));
        },
        ExitCode::kData, {"config.json", "auto_map.AutoModel", "modeling." + name});
  }
  expect_error([&] { parse_config(with("architectures", "Lfm2Model")); }, ExitCode::kData, {"architectures", "a list"});
  expect_error([&] { parse_config(with("architectures", {1})); }, ExitCode::kData, {"architectures", "1"});
  expect_error([&] { parse_config(with("auto_map", "x")); }, ExitCode::kData, {"auto_map", "an object"});
  const OrderedJson harmless = {{"AutoConfig", "configuration.Lfm2Config"},
                                {"AutoModelForCausalLM", "owner/name--modeling.Lfm2ForCausalLM"},
                                {"AutoTokenizer", {"tokenization.X", nullptr}}};
  EXPECT_EQ(parse_config(with("auto_map", harmless)), plain);
}

TEST(ModelConfigTest, RefusesWhatItDoesNotKnow) {
  struct Case {
    std::string key;
    OrderedJson value;  // null: the key is removed
    std::string part;
  };
  const std::vector<Case> cases = {
      {"model_type", "llama", "model_type"},
      {"model_type", nullptr, "model_type"},
      {"vocab_size", 0, "vocab_size"},
      {"vocab_size", -5, "vocab_size"},
      {"vocab_size", "256", "vocab_size"},
      {"vocab_size", 1.5, "vocab_size"},
      {"hidden_size", 1 << 25, "hidden_size"},
      {"hidden_size", nullptr, "hidden_size"},
      {"hidden_size", 63, "hidden_size"},
      {"num_hidden_layers", 5000, "num_hidden_layers"},
      {"num_hidden_layers", 7, "layer_types"},
      {"num_attention_heads", 3, "hidden_size"},
      {"num_key_value_heads", 3, "key-value heads"},
      {"head_dim", 32, "head_dim"},
      {"layer_types", OrderedJson::array({"conv", "mamba"}), "mamba"},
      {"layer_types", "conv", "layer_types"},
      {"num_experts_per_tok", 9, "num_experts"},
      {"num_experts", 100000, "num_experts"},
      {"num_dense_layers", -1, "num_dense_layers"},
      {"norm_eps", 0, "norm_eps"},
      {"norm_eps", "tiny", "norm_eps"},
      {"conv_L_cache", 100000, "conv_L_cache"},
      {"conv_bias", 1, "conv_bias"},
      {"rope_parameters", {{"rope_theta", -1}}, "rope_theta"},
      {"rope_parameters", 5, "rope"},
      {"max_position_embeddings", 0, "max_position_embeddings"},
      {"tie_word_embeddings", "yes", "tie_word_embeddings"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.key + " = " + c.value.dump());
    OrderedJson json = golden_config("tiny-moe");
    if (c.value.is_null())
      json.erase(c.key);
    else
      json[c.key] = c.value;
    expect_error([&] { parse_config(json); }, ExitCode::kData, {"config.json", c.part});
  }
  expect_error([] { parse_model_config("[]", "config.json"); }, ExitCode::kData, {"config.json"});
  expect_error([] { parse_model_config("", "config.json"); }, ExitCode::kData, {"config.json"});
}

TEST(ModelConfigTest, EveryGoldenCheckpointHasExactlyTheseTensors) {
  for (const std::string& name : test::kGoldenCases) {
    const std::string file = test::read_bytes(test::golden_dir() / name / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    const OrderedJson header = OrderedJson::parse(file.substr(8, length));
    const auto specs = model_tensors(parse_config(golden_config(name)));
    EXPECT_EQ(specs.size() + 1, header.size()) << name;  // the header also has __metadata__
    for (const TensorSpec& spec : specs) {
      ASSERT_TRUE(header.contains(spec.name)) << spec.name;
      EXPECT_EQ(header[spec.name]["shape"], OrderedJson(spec.dims)) << spec.name;
    }
  }
}

TEST(TensorTableTest, CountsElementsWithoutOverflow) {
  EXPECT_EQ(numel({}), 1u);
  EXPECT_EQ(numel({3, 0, 5}), 0u);
  EXPECT_EQ(numel({2048, 1, 3}), 6144u);
  expect_error([] { numel({UINT64_C(1) << 33, UINT64_C(1) << 33}); }, ExitCode::kData, {"64 bits"});
}

}  // namespace
}  // namespace lfm2
