// The figures of plan, compared with published ones and with ones counted by hand.
#include "base/json/json.h"
#include "support/weights_support.h"
#include "weights-tools/commands/stages.h"
#include "weights-tools/model/quantizing_source.h"
#include "weights-tools/model/synth.h"

namespace lfm2 {
namespace {

using test::expect_error;

TEST(StageNeedsTest, SumsToThePublishedFigures) {
  const SynthSource model(std::string(builtin_model_config("lfm2-8b-a1b")), "built-in", 0, DType::kBf16);
  const auto one = stage_needs(model, equal_partition(24, 1), {{}, DType::kBf16, 64, 32});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].parameters, 8'339'930'560u);
  EXPECT_EQ(one[0].weight_bytes, model.total_bytes());
  EXPECT_NEAR(one[0].gflop_per_token, 2.85, 0.01);
  EXPECT_NEAR(head_gflop(model.config()), 0.268, 0.001);
  EXPECT_EQ(one[0].slot_bytes, 2u * 64 * 32 * 2048 * 2);
  EXPECT_EQ(one[0].attention_layers, 6);
}

TEST(StageNeedsTest, StagesAddUpAndTheTiedEmbeddingCountsTwice) {
  const SynthSource model(std::string(builtin_model_config("lfm2-8b-a1b")), "built-in", 0, DType::kBf16);
  const auto one = stage_needs(model, equal_partition(24, 1), {{}, DType::kBf16, 64, 32});
  for (int64_t stages = 2; stages <= 24; ++stages) {
    uint64_t bytes = 0;
    double gflop = 0;
    int64_t attention = 0;
    for (const StageNeeds& stage : stage_needs(model, equal_partition(24, stages), {{}, DType::kBf16, 64, 32})) {
      bytes += stage.weight_bytes;
      gflop += stage.gflop_per_token;
      attention += stage.attention_layers;
      EXPECT_EQ(stage.logits_bytes > 0, stage.layers.end() == 24);
    }
    EXPECT_EQ(bytes, one[0].weight_bytes + 65536u * 2048 * 2);
    EXPECT_NEAR(gflop, one[0].gflop_per_token, 1e-9);
    EXPECT_EQ(attention, 6);
  }
}

TEST(StageNeedsTest, DtypeDecidesTheWeights) {
  const auto model = open_model(test::golden_dir() / "tiny-bf16");
  const auto kept = stage_needs(*model, equal_partition(8, 1), {{}, DType::kBf16, 1, 1});
  const auto wide = stage_needs(*model, equal_partition(8, 1), {DType::kF32, DType::kF32, 1, 1});
  EXPECT_EQ(kept[0].weight_bytes, model->total_bytes());
  EXPECT_EQ(wide[0].weight_bytes, 4 * kept[0].parameters);
}

// A dense feed-forward of 12, which a device holds as 16, and 3 experts of 100, held as 104.
TEST(StageNeedsTest, CountsTheScalesThatADeviceHolds) {
  const std::string text = OrderedJson{{"model_type", "lfm2_moe"},
                                       {"vocab_size", 32},
                                       {"hidden_size", 16},
                                       {"num_hidden_layers", 2},
                                       {"intermediate_size", 12},
                                       {"moe_intermediate_size", 100},
                                       {"num_dense_layers", 1},
                                       {"num_experts", 3},
                                       {"num_experts_per_tok", 2},
                                       {"num_attention_heads", 2},
                                       {"num_key_value_heads", 1},
                                       {"max_position_embeddings", 64},
                                       {"layer_types", {"conv", "full_attention"}}}
                               .dump();
  const auto weight_bytes = [](const ModelSource& model) {
    return stage_needs(model, equal_partition(2, 1), {{}, DType::kBf16, 1, 1})[0].weight_bytes;
  };
  const auto source = [&] { return std::make_unique<SynthSource>(text, "config", 0, DType::kBf16); };
  const auto fp8_bytes = [&](Quantization::Scheme scheme) {
    return weight_bytes(*quantize(source(), scheme, Fp8Modules::kFeedForward, {}));
  };
  const uint64_t elements = 3 * 16 * (16 + 3 * 104);  // in one byte instead of two
  const uint64_t without_scales = weight_bytes(*source()) - elements;
  EXPECT_EQ(fp8_bytes(Quantization::Scheme::kChannel), without_scales + 4 * (2 * 16 + 16 + 3 * (2 * 104 + 16)));
  EXPECT_EQ(fp8_bytes(Quantization::Scheme::kBlock), without_scales + 4 * (2 * 2 + 2 + 3 * (2 * 13 + 2)));
}

TEST(StageOptionsTest, ReadsAmountsOfMemory) {
  EXPECT_EQ(parse_bytes("80GB"), 80'000'000'000u);
  EXPECT_EQ(parse_bytes("80 GiB"), UINT64_C(80) << 30);
  EXPECT_EQ(parse_bytes("1.5tb"), 1'500'000'000'000u);
  EXPECT_EQ(parse_bytes("512MiB"), 512u << 20);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  for (const char* bad : {"", "GB", "80XB", "-1GB", "0GB", "nanGB", "infGB", "1e30GB", "80GB80", "8 0GB", "0.1"})
    expect_error([&] { parse_bytes(bad); }, ExitCode::kUsage, {std::string("\"") + bad + "\"", "80GB"});
}

TEST(StageOptionsTest, ChoosesStages) {
  EXPECT_EQ(choose_stages(24, {}, {}), equal_partition(24, 4));
  EXPECT_EQ(choose_stages(3, {}, {}), equal_partition(3, 3));
  EXPECT_EQ(choose_stages(24, 7, {}), equal_partition(24, 7));
  EXPECT_EQ(choose_stages(24, {}, {20, 4}), explicit_partition(24, {20, 4}));
  for (const int64_t bad : {-1, 0, 25})
    expect_error([&] { choose_stages(24, bad, {}); }, ExitCode::kUsage, {"--stages", std::to_string(bad), "1 to 24"});
}

TEST(StageOptionsTest, KnowsTypes) {
  EXPECT_EQ(wanted_dtype("keep"), std::nullopt);
  EXPECT_EQ(wanted_dtype("bf16"), DType::kBf16);
  for (const char* bad : {"", "float32", "BF16", "int32"})
    expect_error([&] { wanted_dtype(bad); }, ExitCode::kUsage, {"--dtype", "fp16"});
}

}  // namespace
}  // namespace lfm2
