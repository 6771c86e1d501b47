// What works with one kind of model works with each: fp8 weights, drafters, constraints and adapters, over one rank and
// over two. Tests of each subject have the other kinds; keys and values in fp8 are in generation_test.cpp.
#include <gtest/gtest.h>

#include "support/adapters.h"
#include "support/text_run.h"

namespace lfm2::test {
namespace {

class FamilyTest : public testing::Test {
 protected:
  std::string split(const std::filesystem::path& model, int stages, const Arguments& more = {}) const {
    const std::string shards = folder_ / ("shards-" + std::to_string(stages));
    Arguments arguments{"split", model, "--stages", std::to_string(stages), "--out", shards, "--force"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    run_weights_tools(arguments);
    return shards;
  }
  // Drawn texts with their log-probabilities.
  std::string texts(int ranks, const std::string& shards, const Arguments& more = {}) const {
    std::filesystem::remove(folder_ / "out.jsonl");
    Arguments arguments{"--weights",      shards,
                        "--samples",      "6",
                        "--length",       "17",
                        "--max-tokens",   "20",
                        "--eos",          "3",
                        "--temperature",  "0.3",
                        "--top-logprobs", "2",
                        "--output",       folder_ / "out.jsonl",
                        "--report",       folder_ / "report.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_bytes(folder_ / "out.jsonl");
  }

  TemporaryFolder folder_;
};

TEST_F(FamilyTest, WeightsInFp8OfADenseModel) {
  const std::string plain = texts(1, golden_shards("tiny-dense", 1));
  for (const char* scheme : {"channel", "block"}) {
    SCOPED_TRACE(scheme);
    const std::filesystem::path model = folder_ / scheme;
    run_weights_tools({"quantize", golden_dir() / "tiny-dense", "--to", "fp8", "--scheme", scheme, "--modules", "all",
                       "--out", model});
    const std::string one = texts(1, split(model, 1));
    EXPECT_NE(one, plain);
    EXPECT_EQ(texts(2, split(model, 2), {"--page-size", "4", "--max-batched-tokens", "5"}), one);
    EXPECT_EQ(parse_json(read_bytes(folder_ / "report.json"), "report").at("dtype"), "fp8");
  }
}

// The drafter of tiny-dense fits tiny-lfm3, too, once it reads other layers.
TEST_F(FamilyTest, DraftersOfDenseModelsAndOfLfm3) {
  for (const auto& [model, layers] : {std::pair{"tiny-dense", 5}, std::pair{"tiny-lfm3", 8}}) {
    SCOPED_TRACE(model);
    const std::filesystem::path golden = golden_dir() / "dspark/tiny-dense", drafter = folder_ / model;
    std::filesystem::create_directories(drafter);
    Json config = parse_json(read_bytes(golden / "config.json"), "config.json");
    config["dflash_config"]["num_target_layers"] = layers;
    write_bytes(drafter / "config.json", config.dump());
    std::filesystem::copy_file(golden / "model.safetensors", drafter / "model.safetensors");
    const std::string plain = texts(1, golden_shards(model, 4));
    for (const int ranks : {1, 2}) {
      EXPECT_EQ(texts(ranks, golden_shards(model, 4), {"--draft", drafter, "--draft-length", "3", "--page-size", "4"}),
                plain);
      const Json report = parse_json(read_bytes(folder_ / "report.json"), "report");
      EXPECT_GT(report.at("generation").at("draft_rounds"), 20);
    }
  }
}

// Every kind of projection of LFM3 has an adapter; the results are those of weights that were added by hand.
TEST_F(FamilyTest, AdaptersOfLfm3) {
  HandAdapter adapter;
  adapter.config["lora_alpha"] = 1;
  std::vector<HandTensor> tensors = golden_tensors("tiny-lfm3");
  struct Module {
    const char *name, *in_file;
    uint64_t rows, columns;
  };
  for (const Module& one : {Module{"0.conv.in_proj", nullptr, 144, 48},
                            {"1.conv.out_proj", nullptr, 48, 48},
                            {"2.self_attn.q_proj", nullptr, 64, 48},
                            {"2.self_attn.g_proj", "2.self_attn.gate_proj", 4, 48},
                            {"4.self_attn.k_proj", nullptr, 32, 48},
                            {"4.self_attn.v_proj", nullptr, 32, 48},
                            {"7.self_attn.o_proj", nullptr, 48, 64},
                            {"7.self_attn.g_proj", "7.self_attn.gate_proj", 4, 48},
                            {"3.feed_forward.w1", nullptr, 96, 48},
                            {"5.feed_forward.w3", nullptr, 96, 48},
                            {"6.feed_forward.w2", nullptr, 48, 96}}) {
    const std::string layers = "model.layers.", module = layers + one.name;
    adapter.add_pair(module, {2, one.columns}, {one.rows, 2});
    HandTensor& tensor = find_tensor(tensors, layers + (one.in_file != nullptr ? one.in_file : one.name) + ".weight");
    std::vector<float> weight(numel(tensor.dims));
    std::memcpy(weight.data(), tensor.bytes.data(), tensor.bytes.size());
    add_linear_product(weight, one.columns, 2, 0.5f, adapter, module);
    std::memcpy(tensor.bytes.data(), weight.data(), tensor.bytes.size());
  }
  write_folder(folder_ / "merged", "tiny-lfm3", tensors);
  const std::string expected = texts(1, split(folder_ / "merged", 1)), folder = adapter.write(folder_ / "adapter");
  EXPECT_NE(expected, texts(1, golden_shards("tiny-lfm3", 1)));
  for (const int ranks : {1, 2})
    EXPECT_EQ(texts(ranks, split(golden_dir() / "tiny-lfm3", ranks, {"--adapter", folder})), expected) << ranks;
}

class FamilyTextTest : public TextRun {};

// Of a dense model: constraint_test.cpp.
TEST_F(FamilyTextTest, ConstraintsOfExpertsAndOfLfm3) {
  constexpr const char* kField =
      R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties":
         {"a": {"type": "integer", "minimum": 3, "maximum": 99}, "b": {"enum": ["x", "yy"]}}, "required": ["a", "b"],
         "additionalProperties": false}}})";
  std::vector<std::string> lines;
  for (int i = 0; i < 8; ++i) {
    lines.push_back(
        batch_line(std::to_string(i), false,
                   fmt::format(R"({{"prompt": "say {}", "max_tokens": 90, "seed": {}, "temperature": {}, {}}})", i, i,
                               i % 2, kField)));
    std::erase(lines.back(), '\n');
  }
  write_lines("in.jsonl", lines);
  const std::pair<const char*, const char*> kinds[] = {
      {"moe", R"({"model_type": "lfm2_moe", "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
                  "num_dense_layers": 1, "norm_topk_prob": true, "use_expert_bias": true, "routed_scaling_factor": 1.0,
                  "block_auto_adjust_ff_dim": null})"},
      {"lfm3", R"({"model_type": "lfm3", "head_dim": 16, "sliding_window": 8, "rope_parameters": null,
                   "layer_types": ["conv", "full_attention", "sliding_attention", "conv"],
                   "block_auto_adjust_ff_dim": null})"}};
  for (const auto& [kind, patch] : kinds) {
    SCOPED_TRACE(kind);
    Json config = Json::parse(kTextModelConfig);
    config.merge_patch(Json::parse(patch));
    write_bytes(folder_ / "config.json", config.dump());
    run_weights_tools({"synth", "--config", folder_ / "config.json", "--dtype", "fp32", "--out", folder_ / kind});
    write_texts(folder_ / kind, kTemplate);
    for (const int stages : {1, 2}) split(kind, shards(stages), stages);
    const std::string first = output_of(1, {"--input", folder_ / "in.jsonl"});
    int whole = 0;
    for (const auto& [name, answer] : by_name(first)) {
      const Json choice = Json::parse(answer)["response"]["body"]["choices"][0];
      if (choice["finish_reason"] == "length") continue;
      const Json record = parse_json(choice["text"].get<std::string>(), "answer");
      EXPECT_EQ(record.size(), 2u) << answer;
      EXPECT_TRUE(record["a"] >= 3 && record["a"] <= 99 && (record["b"] == "x" || record["b"] == "yy")) << answer;
      ++whole;
    }
    EXPECT_GE(whole, 6);
    EXPECT_EQ(output_of(2, {"--input", folder_ / "in.jsonl", "--page-size", "4", "--max-batched-tokens", "5"}), first);
  }
}

}  // namespace
}  // namespace lfm2::test
