// config.json of lfm3: its defaults, the rotation of each kind of attention, and what must be refused.
#include "base/json/json.h"
#include "stage/model/tensor_table.h"
#include "stage/model/token_pruning.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;

class Lfm3ConfigTest : public testing::Test {
 protected:
  // The golden case's configuration with other values; null removes a key.
  static ModelConfig with(const OrderedJson& changes) {
    OrderedJson json = OrderedJson::parse(test::read_bytes(test::golden_dir() / "tiny-lfm3" / "config.json"));
    for (const auto& [key, value] : changes.items())
      value == "absent" ? void(json.erase(key)) : void(json[key] = value);
    return parse_model_config(json.dump(), "config.json");
  }
  static void refused(const OrderedJson& changes, std::vector<std::string> parts) {
    parts.emplace_back("config.json");
    SCOPED_TRACE(changes.dump());
    expect_error([&] { with(changes); }, ExitCode::kData, parts);
  }
  // rope_parameters with this object for full attention.
  static OrderedJson full(const OrderedJson& rope) {
    return {{"rope_parameters", {{"full_attention", rope}, {"sliding_attention", {{"rope_theta", 1e4}}}}}};
  }
};

TEST_F(Lfm3ConfigTest, ReadsThePublishedModel) {
  const ModelConfig c = parse_model_config(builtin_model_config("lfm3-1.7b"), "built-in");
  uint64_t parameters = 0;
  for (const TensorSpec& spec : model_tensors(c)) parameters += numel(spec.dims);
  EXPECT_EQ(parameters, 1'728'801'536u);
  EXPECT_EQ(std::vector<int64_t>({c.heads, c.kv_heads, c.head_dim, c.ffn, c.conv_length, c.window}),
            std::vector<int64_t>({16, 4, 128, 7680, 7, 256}));
  EXPECT_TRUE(c.sandwich_norms && c.head_gates && c.tied_embedding && c.note.empty());
  EXPECT_EQ(c.rope, (Rope{1e6f, 32}));
  EXPECT_EQ(c.sliding_rope, Rope{1e4f});
  EXPECT_EQ(c.attention(LayerType::kSlidingAttention).window, 256);
  EXPECT_EQ(c.attention().window, 0);
  EXPECT_EQ(tail_length(c), 1 + 6);  // one convolution after the last attention
}

// The rest of the file may be absent.
TEST_F(Lfm3ConfigTest, DefaultsAreThoseOfThePublishedModel) {
  OrderedJson json = OrderedJson::parse(builtin_model_config("lfm3-1.7b"));
  const ModelConfig whole = parse_model_config(json.dump(), "config.json");
  for (const char* key :
       {"attention_bias", "conv_L_cache", "conv_bias", "eos_token_id", "head_dim", "layer_types", "norm_eps",
        "rope_parameters", "sliding_window", "tie_word_embeddings", "use_attention_gate", "use_sandwich_norm"})
    json.erase(key);
  EXPECT_EQ(parse_model_config(json.dump(), "config.json"), whole);
}

TEST_F(Lfm3ConfigTest, EachKindOfAttentionHasItsRotation) {
  EXPECT_EQ(with({}).rope, (Rope{1e6f, 4}));
  EXPECT_EQ(with({}).sliding_rope, Rope{1e4f});
  EXPECT_EQ(with(full({{"rope_type", "default"}, {"rope_theta", 5}})).rope, Rope{5});
  EXPECT_EQ(with(full({{"rope_type", "proportional"}})).rope, Rope{1e6f});  // of all pairs
  EXPECT_EQ(with(full({{"type", "proportional"}, {"factor", 4}, {"partial_rotary_factor", 0.3}})).rope,
            (Rope{1e6f, 2, 4.0f}));
  OrderedJson outside = full({{"rope_type", "default"}});
  outside["rope_theta"] = 7;
  EXPECT_EQ(with(outside).rope, Rope{7});
  EXPECT_EQ(with(outside).sliding_rope, Rope{1e4f});
  outside["rope_scaling"] = {{"full_attention", {{"rope_theta", 3}}}, {"sliding_attention", {{"rope_theta", 2}}}};
  EXPECT_EQ(with(outside).rope, Rope{3});
  outside["rope_scaling"] = OrderedJson::object();
  EXPECT_EQ(with(outside).rope, Rope{7});
}

// The published file says so, and transformers drops the factor.
TEST_F(Lfm3ConfigTest, DefaultWithAFactorIsReadAsProportionalAndSaysSo) {
  const ModelConfig c = with(full({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}));
  EXPECT_EQ(c.rope, (Rope{1e6f, 4}));
  EXPECT_EQ(c.note,
            "rope_parameters.full_attention has rope_type default and partial_rotary_factor 0.5: computed as "
            "proportional, not as default, which turns whole heads");
  EXPECT_TRUE(with(full({{"rope_type", "default"}, {"partial_rotary_factor", 1}})).note.empty());
}

TEST_F(Lfm3ConfigTest, RefusesOtherRotations) {
  refused(full({{"rope_type", "yarn"}}), {"rope_parameters.full_attention.rope_type", "yarn", "proportional"});
  refused(full({{"rope_type", "default"}, {"factor", 2}}), {"rope_parameters.full_attention.factor"});
  refused(full({{"attention_factor", 2}}), {"rope_parameters.full_attention.attention_factor"});
  refused(full({{"partial_rotary_factor", 1.5}}), {"partial_rotary_factor", "at most 1"});
  refused(full({{"partial_rotary_factor", 0.01}}), {"partial_rotary_factor", "nothing"});
  refused(full({{"partial_rotary_factor", nullptr}}), {"partial_rotary_factor", "null"});
  refused(full(nullptr), {"rope_parameters.full_attention", "null", "an object"});
  refused({{"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}}}}, {"rope_parameters.rope_theta"});
  refused({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}}, {"sliding_attention", "missing"});
  refused({{"rope_parameters", OrderedJson::object()}}, {"sliding_attention", "missing"});
  refused({{"rope_parameters", 3}}, {"rope_parameters", "an object"});
  // A kind that has no layer needs no object.
  const OrderedJson one = {{"layer_types", std::vector<std::string>(8, "full_attention")},
                           {"rope_parameters", {{"full_attention", {{"rope_theta", 9}}}}}};
  EXPECT_EQ(with(one).rope, Rope{9});
}

TEST_F(Lfm3ConfigTest, ReadsItsOwnKeys) {
  EXPECT_EQ(with({{"rms_norm_eps", 1e-3}}).norm_eps, 1e-3f);  // the other name wins
  EXPECT_TRUE(with({{"tie_embedding", false}}).tied_embedding);
  EXPECT_FALSE(with({{"tie_word_embeddings", false}}).tied_embedding);
  EXPECT_EQ(with({{"head_dim", "absent"}}).head_dim, 128);
  EXPECT_EQ(with({{"sliding_window", 1}}).window, 1);
  EXPECT_EQ(with({{"sliding_window", nullptr}, {"layer_types", std::vector<std::string>(8, "conv")}}).window, 0);
  EXPECT_EQ(with({{"block_ff_dim", 7}}).ffn, 96);
  refused({{"head_dim", nullptr}}, {"head_dim"});
  refused({{"head_dim", 15}}, {"head_dim", "even"});
  refused({{"head_dim", 4}}, {"head_dim", "at least 6"});
  refused({{"head_dim", 1 << 24}}, {"elements in all"});
  refused({{"num_key_value_heads", 3}}, {"num_key_value_heads", "divisor"});
  refused({{"sliding_window", nullptr}}, {"sliding_window"});
  refused({{"sliding_window", 0}}, {"sliding_window", "0"});
  refused({{"is_causal", false}}, {"is_causal"});
  refused({{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor", "expected 1"});
  refused({{"layer_types", std::vector<std::string>(8, "mamba")}}, {"mamba", "sliding_attention"});
  refused({{"layer_types", std::vector<std::string>(7, "conv")}}, {"7 entries"});
}

}  // namespace
}  // namespace lfm2
