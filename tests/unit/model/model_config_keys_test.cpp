// Every key of a config.json that transformers may read is computed, refused, or known to change nothing. The list,
// model_config_keys.json, is made by tests/reference/model_config_keys.py, which says what its columns mean.
#include <optional>

#include "base/json/json.h"
#include "stage/model/model_config.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

// The keys that a file must have; everything else has the default of the class.
OrderedJson base_config(const std::string& model_type) {
  OrderedJson json = {{"model_type", model_type},
                      {"vocab_size", 256},
                      {"hidden_size", 64},
                      {"intermediate_size", 1024},
                      {"num_hidden_layers", 4},
                      {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},
                      {"max_position_embeddings", 1024},
                      {"layer_types", {"conv", "full_attention", "conv", "conv"}}};
  if (model_type == "lfm2_moe")
    json.update({{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 48}});
  if (model_type == "lfm3")
    json.update({{"layer_types", {"conv", "full_attention", "sliding_attention", "conv"}},
                 {"rope_parameters",
                  {{"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}}},
                   {"sliding_attention", {{"rope_theta", 1e4}}}}}});
  return json;
}

// Sets a key; "rope_parameters.factor" names a key inside an object.
void set(OrderedJson& json, const std::string& key, const OrderedJson& value) {
  const size_t dot = key.find('.');
  if (dot == std::string::npos)
    json[key] = value;
  else
    json[key.substr(0, dot)][key.substr(dot + 1)] = value;
}

// The parsed model, or the message of the error.
struct Outcome {
  std::optional<ModelConfig> config;
  std::string message;
};
Outcome outcome_of(const OrderedJson& json) {
  try {
    return {parse_model_config(json.dump(), "config.json"), ""};
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::kData)) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return {std::nullopt, error.what()};
  }
}

class ModelConfigKeysTest : public testing::Test {
 protected:
  const OrderedJson list_ = OrderedJson::parse(
      test::read_bytes(test::golden_dir().parent_path() / "unit" / "model" / "model_config_keys.json"));
};

TEST_F(ModelConfigKeysTest, TheListHoldsAllClasses) {
  EXPECT_FALSE(list_["transformers"].get<std::string>().empty());
  std::set<std::pair<std::string, std::string>> keys;
  for (const OrderedJson& row : list_["keys"])
    EXPECT_TRUE(keys.emplace(row["class"], row["key"]).second) << row << " stands twice";
  for (const std::string model_type : {"lfm2", "lfm2_moe"})
    for (const std::string key : {"vocab_size", "tie_embedding", "rope_parameters.rope_type", "head_dim"})
      EXPECT_TRUE(keys.contains({model_type, key})) << model_type << " " << key;
  for (const std::string key : {"use_attention_gate", "use_sandwich_norm", "sliding_window", "rms_norm_eps"})
    EXPECT_TRUE(keys.contains({"lfm3", key})) << key;
}

TEST_F(ModelConfigKeysTest, NoKeyIsSilentlyIgnored) {
  for (const OrderedJson& row : list_["keys"]) {
    SCOPED_TRACE(row.dump());
    const std::string key = row["key"], verdict = row["verdict"];
    ASSERT_TRUE(row.contains("example") && !verdict.empty()) << "nobody has said what this key does";
    OrderedJson json = base_config(row["class"]);
    if (row.contains("without"))
      for (const std::string other : row["without"]) json.erase(other);
    const Outcome before = outcome_of(json);
    ASSERT_TRUE(before.config) << before.message;
    set(json, key, row["example"]);
    const Outcome after = outcome_of(json);
    if (verdict == "computed") {
      EXPECT_FALSE(after.config == before.config) << "changes nothing";
    } else if (verdict == "one value") {
      EXPECT_FALSE(after.config) << "is not refused";
      EXPECT_NE(after.message.find(key), std::string::npos) << after.message;
    } else {
      EXPECT_EQ(verdict, "harmless");
      EXPECT_TRUE(after.config == before.config) << "changes the model: " << after.message;
    }
  }
}

// A missing key either means the default of the class, or is demanded by name.
TEST_F(ModelConfigKeysTest, DefaultsAreThoseOfTheClass) {
  for (const OrderedJson& row : list_["keys"]) {
    if (!row.contains("default") || row["default"].is_null() || row["verdict"] == "harmless") continue;
    SCOPED_TRACE(row.dump());
    const std::string key = row["key"];
    OrderedJson json = base_config(row["class"]);
    json.erase(key);
    const Outcome missing = outcome_of(json);
    if (!missing.config) {
      EXPECT_NE(missing.message.find("\"" + key + "\" is missing"), std::string::npos) << missing.message;
      continue;
    }
    json[key] = row["default"];
    const Outcome given = outcome_of(json);
    EXPECT_TRUE(given.config == missing.config) << given.message;
  }
}

}  // namespace
}  // namespace lfm2
