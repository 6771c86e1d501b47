// Folders of drafters: what is read, and what is refused by name.
#include "stage/dspark/dspark_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "stage/dspark/dspark_weights.h"
#include "support/golden.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

std::filesystem::path drafter() { return golden_dir() / "dspark" / "tiny-dense"; }

Json config_of_drafter() {
  return parse_json(read_text_file(drafter() / "config.json", 1 << 20), "the drafter's config.json");
}

template <class F>
void expect_refused(F&& call, const std::string& part) {
  expect_error(std::forward<F>(call), ExitCode::kData, {part});
}

TEST(DsparkConfigTest, PublishedKeysAreRead) {
  const DsparkConfig config = parse_dspark_config(config_of_drafter().dump(), "c");
  EXPECT_EQ(config.taps, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(config.target_layers, 5);
  EXPECT_EQ(config.block_size, 4);
  EXPECT_EQ(config.mask_token, 199);
  EXPECT_EQ(config.markov_rank, 8);
  EXPECT_EQ(config.blocks.head_dim, 8);
  EXPECT_EQ(config.blocks.rope.theta, 1e6f);
  EXPECT_TRUE(config.rope_pairs);
  // What transformers writes for every model changes nothing.
  Json more = config_of_drafter();
  more.update(
      {{"transformers_version", "5.0"}, {"use_cache", true}, {"tie_word_embeddings", true}, {"unset", nullptr}});
  EXPECT_EQ(parse_dspark_config(more.dump(), "c").taps, config.taps);
  // Other places of the same keys, and the default of RoPE.
  Json moved = config_of_drafter();
  moved["dspark_config"] = moved["dflash_config"];
  for (const char* key : {"dflash_config", "rope_theta", "rope_is_neox_style"}) moved.erase(key);
  moved["rope_parameters"] = {{"rope_theta", 5e6}, {"rope_type", "default"}};
  const DsparkConfig other = parse_dspark_config(moved.dump(), "c");
  EXPECT_EQ(other.taps, config.taps);
  EXPECT_EQ(other.blocks.rope.theta, 5e6f);
  EXPECT_FALSE(other.rope_pairs);
}

TEST(DsparkConfigTest, WhatIsNotComputedIsRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"architectures": ["DFlashDraftModel"]})", "Lfm2DSparkDraftModel"},
      {R"({"hidden_act": "gelu"})", "hidden_act"},
      {R"({"markov_head_type": "gated"})", "markov_head_type"},
      {R"({"sample_from_anchor": false})", "sample_from_anchor"},
      {R"({"projector_type": "mlp"})", "projector_type"},
      {R"({"attention_bias": true})", "attention_bias"},
      {R"({"final_logit_softcapping": 30})", "final_logit_softcapping"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types"},
      {R"({"layer_types": ["full_attention"]})", "layer_types"},
      {R"({"rope_parameters": {"rope_type": "yarn"}})", "rope_parameters.rope_type"},
      {R"({"dflash_config": {"new_switch": 1}})", "dflash_config.new_switch"},
      {R"({"new_switch": false})", "\"new_switch\" is not known"},
      {R"({"dflash_config": {"target_layer_ids": [0, 2, 4]}})", "target_layer_ids"},  // the last layer's
      {R"({"dflash_config": {"target_layer_ids": [2, 0]}})", "target_layer_ids"},
      {R"({"dflash_config": {"mask_token_id": 200}})", "mask_token_id"},
      {R"({"block_size": 0})", "block_size"},
      {R"({"head_dim": 7})", "heads of an even size"},
      {R"({"rope_theta": null})", "rope_theta"},
  };
  for (const auto& [patch, part] : refused) {
    SCOPED_TRACE(patch);
    Json config = config_of_drafter();
    config.merge_patch(Json::parse(patch));
    if (config.find("rope_theta") == config.end()) config["rope_theta"] = Json();
    expect_refused([&] { parse_dspark_config(config.dump(), "c"); }, part);
  }
}

TEST(DsparkConfigTest, AnotherTargetIsRefused) {
  const DsparkConfig config = parse_dspark_config(config_of_drafter().dump(), "c");
  ModelConfig target;
  target.vocab = 200, target.hidden = 48, target.layers = 5;
  expect_target(config, target, "c");
  const std::pair<int64_t ModelConfig::*, const char*> members[] = {{&ModelConfig::vocab, "vocab_size"},
                                                                    {&ModelConfig::hidden, "hidden_size"},
                                                                    {&ModelConfig::layers, "num_target_layers"}};
  for (const auto& [member, part] : members) {
    ModelConfig other = target;
    other.*member += 1;
    expect_refused([&] { expect_target(config, other, "c"); }, part);
  }
}

class DsparkFilesTest : public testing::Test {
 protected:
  // A copy of the drafter with another configuration.
  std::filesystem::path patched(const Json& patch) {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "dspark_files_test";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    std::filesystem::copy_file(drafter() / "model.safetensors", folder / "model.safetensors");
    Json config = config_of_drafter();
    config.merge_patch(patch);
    std::ofstream(folder / "config.json") << config.dump();
    return folder;
  }
};

TEST_F(DsparkFilesTest, TensorsMustBeThoseOfTheConfiguration) {
  const DsparkFiles files = DsparkFiles::open(drafter());
  EXPECT_EQ(files.tensors.size(), dspark_tensors(files.config).size());
  EXPECT_TRUE(files.left_out.contains("confidence_head.proj.weight"));
  expect_refused(
      [&] {
        DsparkFiles::open(patched({{"num_hidden_layers", 3}, {"layer_types", nullptr}}));
      },
      "tensor layers.2.input_layernorm.weight is missing");
  expect_refused(
      [&] {
        DsparkFiles::open(patched({{"num_hidden_layers", 1}, {"layer_types", nullptr}}));
      },
      "tensor layers.1.");
  expect_refused([&] { DsparkFiles::open(patched({{"markov_rank", 9}})); }, "expected [200, 9]");
  EXPECT_TRUE(is_dspark_folder(drafter()));
  EXPECT_FALSE(is_dspark_folder(golden_dir() / "tiny-dense"));
}

TEST(DsparkWeightsTest, NamesAreThoseOfTheFile) {
  EXPECT_EQ(dspark_name("model.layers.1.operator_norm.weight"), "layers.1.input_layernorm.weight");
  EXPECT_EQ(dspark_name("model.layers.0.self_attn.q_layernorm.weight"), "layers.0.self_attn.q_norm.weight");
  EXPECT_EQ(dspark_name("model.layers.0.feed_forward.w3.weight"), "layers.0.mlp.up_proj.weight");
  EXPECT_EQ(dspark_name("model.embedding_norm.weight"), "norm.weight");
  EXPECT_EQ(dspark_name("hidden_norm.weight"), "hidden_norm.weight");
}

}  // namespace
}  // namespace lfm2::test
