// Models that no GPU kernel takes are refused by their configuration alone.
#include "base/json/json.h"
#include "stage/job/backend_choice.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

using Changes = std::vector<std::pair<std::string, OrderedJson>>;

ModelConfig changed(const Changes& changes) {
  OrderedJson json = OrderedJson::parse(builtin_model_config("lfm2-tiny"));
  for (const auto& [key, value] : changes) json[key] = value;
  return parse_model_config(json.dump(), "config.json");
}

TEST(GpuLimitsTest, BuiltInModelsAreComputed) {
  for (const char* name : {"lfm2-8b-a1b", "lfm2-350m", "lfm2-tiny", "lfm3-1.7b"})
    EXPECT_EQ(gpu_refusal(parse_model_config(builtin_model_config(name), name)), "") << name;
}

TEST(GpuLimitsTest, ModelsWithAKeyForTheHeadDimensionAreRefusedByIt) {
  OrderedJson json = OrderedJson::parse(builtin_model_config("lfm3-1.7b"));
  json["head_dim"] = 258;
  const ModelConfig config = parse_model_config(json.dump(), "config.json");
  test::expect_error([&] { expect_gpu_computes(config, "shards"); }, ExitCode::kUnavailable,
                     {"shards: ", "head_dim is 258", "at most 256", "--device cpu"});
}

TEST(GpuLimitsTest, ModelsBeyondALimitAreRefusedByName) {
  const std::vector<std::string> convolutions(8, "conv");
  struct Case {
    Changes most, more;  // at the limit, and beyond it
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {{{"hidden_size", 1024}}, {{"hidden_size", 1032}}, {"hidden_size / num_attention_heads is 258", "at most 256"}},
      {{{"hidden_size", 256}, {"num_attention_heads", 128}},
       {{"hidden_size", 260}, {"num_attention_heads", 130}},
       {"num_attention_heads / num_key_value_heads is 65", "at most 64"}},
      {{{"hidden_size", 131070}, {"num_attention_heads", 65535}, {"num_key_value_heads", 65535}},
       {{"hidden_size", 131072}, {"num_attention_heads", 65536}, {"num_key_value_heads", 65536}},
       {"num_key_value_heads is 65536", "at most 65535"}},
      {{{"hidden_size", 16776960}, {"layer_types", convolutions}},
       {{"hidden_size", 16777200}, {"layer_types", convolutions}},
       {"hidden_size is 16777200", "at most 16776960"}},
      {{{"num_experts", 1024}}, {{"num_experts", 1025}}, {"num_experts is 1025", "at most 1024"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.parts.front());
    EXPECT_EQ(gpu_refusal(changed(c.most)), "");
    EXPECT_NO_THROW(expect_gpu_computes(changed(c.most), "shards"));
    std::vector<std::string> parts = c.parts;
    parts.insert(parts.end(), {"shards: ", "--device cpu"});
    test::expect_error([&] { expect_gpu_computes(changed(c.more), "shards"); }, ExitCode::kUnavailable, parts);
  }
}

// A limit counts only where the model has layers that it is about.
TEST(GpuLimitsTest, LimitsOfLayersThatAreNotThereDoNotCount) {
  EXPECT_EQ(gpu_refusal(changed({{"hidden_size", 2048}, {"layer_types", std::vector<std::string>(8, "conv")}})), "");
  EXPECT_EQ(gpu_refusal(changed({{"num_experts", 2000}, {"num_dense_layers", 8}})), "");
}

// Rows of logits are sampled by sums that only so many tokens keep inside 64 bits: no device takes more.
TEST(GpuLimitsTest, VocabulariesBeyondTheSamplersAreBadData) {
  EXPECT_EQ(changed({{"vocab_size", (1 << 24) - 1}}).vocab, (1 << 24) - 1);
  test::expect_error([] { changed({{"vocab_size", 1 << 24}}); }, ExitCode::kData, {"vocab_size", "16777215"});
}

}  // namespace
}  // namespace lfm2
