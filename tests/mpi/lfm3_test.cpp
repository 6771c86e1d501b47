// LFM3 under mpirun: both readings of the published configuration, and one text for every way to compute it.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json/json.h"
#include "support/golden.h"
#include "support/largest_difference.h"
#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class Lfm3RunTest : public testing::Test {
 protected:
  const std::filesystem::path golden_ = golden_dir() / "tiny-lfm3";
  TemporaryFolder folder_;

  // Splits the golden case with another rope_type of full attention.
  std::string shards_with(const Json& full_attention) {
    const std::filesystem::path model = folder_ / "model", shards = folder_ / "shards";
    Json config = parse_json(read_bytes(golden_ / "config.json"), "config.json");
    config["rope_parameters"]["full_attention"] = full_attention;
    std::filesystem::create_directories(model);
    write_bytes(model / "config.json", config.dump());
    std::filesystem::copy_file(golden_ / "model.safetensors", model / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    run_weights_tools({"split", model, "--stages", "2", "--out", shards, "--force"});
    return shards;
  }
  // Expects the logits of the golden samples within three times the reference's own error in fp32.
  void expect_logits(const std::string& shards, const std::string& dataset, const std::string& said) {
    const Array expected = read_array(golden_ / "golden.h5", dataset),
                own = read_array(golden_ / "golden.h5", "logits"),
                exact = read_array(golden_ / "golden.h5", "logits_f64");
    std::filesystem::remove(folder_ / "out.h5");
    const Outcome outcome = run_stage(2, {"--weights", shards, "--input", golden_ / "golden.h5", "--logits", "all",
                                          "--dtype", "fp32", "--output", folder_ / "out.h5"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("computed as proportional") != std::string::npos, !said.empty()) << outcome.err;
    EXPECT_NE(outcome.err.find(said), std::string::npos) << outcome.err;
    EXPECT_LE(largest_difference(read_array(folder_ / "out.h5", "logits").values, expected.values),
              3 * largest_difference(own.values, exact.values));
  }
};

TEST_F(Lfm3RunTest, BothReadingsOfThePublishedRotation) {
  expect_logits(shards_with({{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}}),
                "logits_f64", "rope_parameters.full_attention has rope_type default");
  expect_logits(shards_with({{"rope_type", "default"}, {"rope_theta", 1e6}}), "logits_f64_rope_default", "");
}

// Prompts that are shorter than the window, whose texts cross it.
TEST_F(Lfm3RunTest, ShortPromptsContinueAsInTransformers) {
  const Array ids = read_array(golden_ / "golden.h5", "input_ids"),
              greedy = read_array(golden_ / "golden.h5", "greedy_short_ids");
  constexpr int64_t kPrompt = 5;
  std::ofstream input(folder_ / "in.jsonl");
  std::vector<std::vector<int32_t>> expected;
  for (int64_t sample = 0; sample < ids.dim(0); ++sample) {
    const auto prompt = ids.values.begin() + sample * ids.dim(1);
    const auto text = greedy.values.begin() + sample * greedy.dim(1);
    input << Json{{"input_ids", std::vector<int32_t>(prompt, prompt + kPrompt)}} << "\n";
    expected.emplace_back(text, text + greedy.dim(1));
  }
  input.close();
  for (const std::vector<std::string>& more : {std::vector<std::string>{},
                                               {"--page-size", "1", "--max-num-seqs", "2"},
                                               {"--page-size", "3", "--draft", "ngram"}}) {
    std::filesystem::remove(folder_ / "out.jsonl");
    std::vector<std::string> arguments{"--weights",
                                       golden_shards("tiny-lfm3", 4),
                                       "--input",
                                       folder_ / "in.jsonl",
                                       "--dtype",
                                       "fp32",
                                       "--max-tokens",
                                       "20",
                                       "--ignore-eos",
                                       "--output",
                                       folder_ / "out.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_stage(3, arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<std::vector<int32_t>> found;
    for (const Json& line : json_lines(read_bytes(folder_ / "out.jsonl")))
      found.push_back(line.at("token_ids").get<std::vector<int32_t>>());
    EXPECT_EQ(found, expected);
  }
}

// Drawn texts with their log-probabilities, in shards as they are and in fp8.
TEST_F(Lfm3RunTest, RanksPagesChunksAndDraftsChangeNoBits) {
  for (const char* scheme : {"", "channel", "block"}) {
    SCOPED_TRACE(scheme);
    std::string shards = golden_shards("tiny-lfm3", 4);
    if (*scheme != 0) {
      const std::filesystem::path model = folder_ / "fp8";
      shards = folder_ / "fp8-shards";
      run_weights_tools(
          {"quantize", golden_, "--to", "fp8", "--scheme", scheme, "--modules", "all", "--out", model, "--force"});
      run_weights_tools({"split", model, "--stages", "3", "--out", shards, "--force"});
    }
    std::string first;
    for (const auto& [ranks, more] : std::vector<std::pair<int, std::vector<std::string>>>{
             {1, {}},
             {2, {"--page-size", "1", "--max-batched-tokens", "3"}},
             {3, {"--draft", "ngram", "--draft-length", "3", "--page-size", "4"}},
             {5, {"--max-num-seqs", "2", "--page-size", "8"}},
             {6, {"--draft", "ngram"}}}) {
      std::filesystem::remove(folder_ / "out.jsonl");
      std::vector<std::string> arguments{
          "--weights",     shards, "--samples", "6", "--length",       "17", "--max-tokens", "30",
          "--temperature", "0.3",  "--eos",     "3", "--top-logprobs", "2",  "--output",     folder_ / "out.jsonl"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Outcome outcome = run_stage(ranks, arguments);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      const std::string bytes = read_bytes(folder_ / "out.jsonl");
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace lfm2::test
