// quantization_config as libraries write it, and every scheme that is refused.
#include "stage/model/quantization.h"

#include <functional>

#include "base/json/json.h"
#include "stage/shards/fp8_tensors.h"
#include "support/fp8_checkpoints.h"

namespace lfm2 {
namespace {

using test::expect_error;
using Scheme = Quantization::Scheme;

Json config_of(const std::string& golden_case) {
  return Json::parse(test::read_bytes(test::golden_dir() / golden_case / "config.json"))["quantization_config"];
}
Quantization parse(const Json& json) { return parse_quantization(json, "config.json"); }

TEST(QuantizationTest, ReadsWhatTheLibrariesWrite) {
  const Quantization channel = parse(config_of("tiny-fp8-channel")), block = parse(config_of("tiny-fp8-block"));
  EXPECT_EQ(channel.scheme, Scheme::kChannel);
  EXPECT_EQ(channel.method, Quantization::Method::kCompressedTensors);
  EXPECT_EQ(channel.ignored.size(), 16u);
  EXPECT_TRUE(channel.ignored.contains("lm_head"));
  EXPECT_EQ(block.scheme, Scheme::kBlock);
  EXPECT_EQ(block.ignored.size(), 3u);
  const Quantization fp8 = parse(config_of("tiny-fp8-hf"));
  EXPECT_EQ(fp8.scheme, Scheme::kBlock);
  EXPECT_EQ(fp8.method, Quantization::Method::kFp8);
  EXPECT_TRUE(fp8.ignored.empty());
}

TEST(QuantizationTest, RefusesEverySchemeThatIsNotComputed) {
  struct Case {
    std::string golden_case, pointer;  // RFC 6901; the value replaces what is there, null text removes it
    std::string value;
    std::vector<std::string> parts;
  };
  const std::string group = "/config_groups/group_0", channel = "tiny-fp8-channel", block = "tiny-fp8-block",
                    fp8 = "tiny-fp8-hf";
  const std::vector<Case> cases = {
      {channel, "/quant_method", "\"gptq\"", {"quantization_config.quant_method", "gptq", "compressed-tensors"}},
      {channel, "/quant_method", "", {"quantization_config.quant_method"}},
      {channel, "/format", "\"int-quantized\"", {"quantization_config.format", "int-quantized", "float-quantized"}},
      {channel, "/format", "", {"quantization_config.format"}},
      {channel, group + "/format", "\"nvfp4-pack-quantized\"", {"group_0.format", "nvfp4"}},
      {channel, group + "/weights/num_bits", "4", {"weights.num_bits", "4", "8"}},
      {channel, group + "/weights/type", "\"int\"", {"weights.type", "int", "float"}},
      {channel, group + "/weights/strategy", "\"tensor\"", {"weights.strategy", "tensor", "channel", "block"}},
      {channel, group + "/weights/symmetric", "false", {"weights.symmetric"}},
      {channel, group + "/weights/dynamic", "true", {"weights.dynamic"}},
      {channel, group + "/weights/group_size", "32", {"weights.group_size", "32"}},
      {channel, group + "/weights/new_key", "1", {"weights.new_key", "not known"}},
      {channel, group + "/weights", "", {"group_0.weights", "object"}},
      {block, group + "/weights/block_structure", "[64,64]", {"weights.block_structure", "[64,64]", "[128,128]"}},
      {block, group + "/weights/block_structure", "", {"weights.block_structure", "[128,128]"}},
      {channel, group + "/input_activations", "", {"group_0.input_activations", "object"}},
      {channel, group + "/input_activations/dynamic", "false", {"input_activations.dynamic", "true"}},
      {channel, group + "/input_activations/dynamic", "\"local\"", {"input_activations.dynamic", "local"}},
      {channel, group + "/input_activations/strategy", "\"tensor\"", {"input_activations.strategy", "token"}},
      {channel, group + "/input_activations/num_bits", "16", {"input_activations.num_bits"}},
      {block, group + "/input_activations/strategy", "\"token\"", {"input_activations.strategy", "group"}},
      {block, group + "/input_activations/group_size", "64", {"input_activations.group_size", "128"}},
      {channel, group + "/output_activations", "{\"num_bits\":8}", {"group_0.output_activations"}},
      {channel, "/config_groups", "{}", {"config_groups", "groups"}},
      {channel, "/config_groups", "[]", {"config_groups", "groups"}},
      {channel, "/kv_cache_scheme", "{\"num_bits\":8}", {"kv_cache_scheme"}},
      {channel, "/sparsity_config", "{\"format\":\"sparse-24-bitmask\"}", {"sparsity_config", "sparse-24"}},
      {channel, "/transform_config", "{\"config_groups\":{}}", {"transform_config"}},
      {channel, "/quantization_status", "\"frozen\"", {"quantization_status", "compressed"}},
      {channel, "/ignore", "\"lm_head\"", {"ignore", "list of texts"}},
      {channel, "/ignore", "[1]", {"ignore", "list of texts"}},
      {channel, "/new_key", "1", {"quantization_config.new_key", "not known"}},
      {fp8, "/weight_block_size", "null", {"weight_block_size", "[128,128]"}},
      {fp8, "/weight_block_size", "", {"weight_block_size", "[128,128]"}},
      {fp8, "/weight_block_size", "[128,64]", {"weight_block_size", "[128,64]"}},
      {fp8, "/activation_scheme", "\"static\"", {"activation_scheme", "static", "dynamic"}},
      {fp8, "/scale_fmt", "\"ue8m0\"", {"scale_fmt", "ue8m0", "float"}},
      {fp8, "/expert_dtype", "\"fp4\"", {"expert_dtype", "fp4", "fp8"}},
      {fp8, "/dequantize", "true", {"dequantize"}},
      {fp8, "/modules_to_convert", "[\"lm_head\"]", {"modules_to_convert"}},
      {fp8, "/modules_to_not_convert", "{}", {"modules_to_not_convert", "list of texts"}},
      {fp8, "/new_key", "1", {"quantization_config.new_key", "not known"}}};
  for (const Case& tested : cases) {
    SCOPED_TRACE(tested.golden_case + tested.pointer + " " + tested.value);
    Json json = config_of(tested.golden_case);
    const Json::json_pointer pointer(tested.pointer);
    if (tested.value.empty())
      json.at(pointer.parent_pointer()).erase(pointer.back());
    else
      json[pointer] = Json::parse(tested.value);
    expect_error([&] { parse(json); }, ExitCode::kData, tested.parts);
  }
  expect_error([] { parse(Json::array()); }, ExitCode::kData, {"quantization_config", "object"});
  Json two = config_of(channel);
  two["config_groups"]["group_1"] = config_of(block)["config_groups"]["group_0"];
  expect_error([&] { parse(two); }, ExitCode::kData, {"config_groups", "channel and block"});
}

TEST(QuantizationTest, AcceptsWhatOtherVersionsWrite) {
  Json channel = config_of("tiny-fp8-channel");
  Json& group = channel["config_groups"]["group_0"];
  channel["config_groups"]["group_1"] = group;  // the same scheme for other modules
  channel["config_groups"]["group_1"]["targets"] = {"re:.*experts.*"};
  group["weights"].update({{"actorder", nullptr}, {"observer_kwargs", Json::object()}, {"scale_dtype", nullptr}});
  channel.erase("moe_sparsity_config");
  EXPECT_EQ(parse(channel), parse(config_of("tiny-fp8-channel")));
  Json fp8 = config_of("tiny-fp8-hf");
  fp8.update({{"fmt", "e4m3"}, {"ignored_layers", {"lm_head"}}});
  fp8.erase("expert_dtype");
  EXPECT_EQ(parse(fp8).ignored, std::set<std::string>{"lm_head"});
}

TEST(Fp8TensorsTest, OnlyProjectionsOfLayersAreFp8) {
  const ModelConfig config = parse_model_config(builtin_model_config("lfm2-tiny"), "built-in");
  size_t projections = 0;
  for (const TensorSpec& spec : model_tensors(config)) {
    const bool other =
        spec.dims.size() != 2 || spec.name.ends_with("gate.weight") || spec.layer < 0 || spec.layer >= config.layers;
    EXPECT_EQ(may_be_fp8(spec), !other) << spec.name;
    projections += may_be_fp8(spec) ? 1 : 0;
  }
  EXPECT_EQ(projections, 6u * 2 + 2u * 4 + 2u * 3 + 6u * 8 * 3);
}

TEST(Fp8TensorsTest, BlocksAtTheEdgesHaveScalesToo) {
  const TensorSpec weight{"model.layers.0.feed_forward.w1.weight", {192, 128}};
  EXPECT_EQ(scale_spec(weight, Scheme::kChannel).dims, (std::vector<uint64_t>{192, 1}));
  EXPECT_EQ(scale_spec(weight, Scheme::kBlock).dims, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(scale_spec(weight, Scheme::kBlock).name, "model.layers.0.feed_forward.w1.weight_scale");
}

TEST(Fp8TensorsTest, KnowsTheNamesOfCheckpoints) {
  const std::string experts = "model.layers.3.feed_forward.experts.";
  const TensorSpec w1{experts + "7.w1.weight", {256, 128}, 3}, w2{experts + "7.w2.weight", {128, 256}, 3};
  const TensorSpec scale1 = scale_spec(w1, Scheme::kBlock), scale2 = scale_spec(w2, Scheme::kBlock);
  EXPECT_TRUE(is_checkpoint_name(w1, experts + "7.gate_proj.weight"));
  EXPECT_TRUE(is_checkpoint_name(w1, experts + "gate_up_proj"));
  EXPECT_TRUE(is_checkpoint_name(w2, experts + "down_proj"));
  EXPECT_TRUE(is_checkpoint_name(scale1, experts + "7.gate_proj.weight_scale"));
  EXPECT_TRUE(is_checkpoint_name(scale1, experts + "7.w1.weight_scale_inv"));
  EXPECT_TRUE(is_checkpoint_name(scale1, experts + "7.gate_proj.weight_scale_inv"));
  EXPECT_TRUE(is_checkpoint_name(scale1, experts + "gate_up_proj_scale_inv"));
  EXPECT_TRUE(is_checkpoint_name(scale2, experts + "down_proj_scale_inv"));
  for (const std::string& other : {experts + "7.up_proj.weight", experts + "6.gate_proj.weight", std::string("x"),
                                   experts + "down_proj", experts + "gate_up_proj_scale_inv"})
    EXPECT_FALSE(is_checkpoint_name(w1, other)) << other;
  EXPECT_FALSE(is_checkpoint_name({"model.layers.0.conv.in_proj.weight", {3, 1}}, "model.layers.0.conv.in_proj.w"));
  EXPECT_TRUE(holds_all_experts(experts + "down_proj_scale_inv"));
  EXPECT_FALSE(holds_all_experts(experts + "7.down_proj.weight_scale_inv"));
}

}  // namespace
}  // namespace lfm2
