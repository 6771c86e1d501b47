// The trained model of tests/golden/kjv-moe, from text to text: log-probabilities of passages and greedy continuations
// are those of transformers, whatever the number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/json/json.h"
#include "support/golden.h"
#include "support/largest_difference.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

const std::filesystem::path kModel = golden_dir() / "kjv-moe";

class SmallModelTest : public testing::TestWithParam<int> {  // the number of ranks
 protected:
  void run(const std::string& input, std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {"--weights", golden_shards("kjv-moe", 4), "--input", kModel / input, "--dtype", "fp32"});
    const Outcome outcome = run_stage(GetParam(), arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  void expect_greedy_texts(const std::string& name, const std::string& input) {
    run(input, {"--max-tokens", "40", "--temperature", "0", "--output", folder_ / "out.jsonl"});
    const std::vector<Json> expected = json_lines(read_bytes(kModel / (name + ".expected.jsonl")));
    const std::vector<Json> found = json_lines(read_bytes(folder_ / "out.jsonl"));
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_FALSE(expected.empty());
    for (size_t line = 0; line < expected.size(); ++line)
      for (const char* field : {"token_ids", "text", "finish_reason"})
        EXPECT_EQ(found[line].at(field), expected[line].at(field)) << input << ", line " << line + 1;
  }
  TemporaryFolder folder_;
};

// Text goes through our tokenizer: with other ids the log-probabilities would be far away.
TEST_P(SmallModelTest, LogProbabilitiesOfTextsAreThoseOfTransformers) {
  run("scored.jsonl", {"--logits", "all", "--output", folder_ / "out.h5"});
  const auto expected = [](const char* name) { return read_array(kModel / "scores.h5", name); };
  const Array ids = expected("input_ids"), offsets = expected("offsets"), log_probs = expected("logprobs_f64"),
              is_greedy = expected("is_greedy");
  const Array logits = read_array(folder_ / "out.h5", "logits");
  ASSERT_EQ(read_array(folder_ / "out.h5", "offsets").values, offsets.values) << "texts of other lengths";
  const int64_t vocab = logits.dim(1);
  double sum = 0, exact_sum = 0;
  std::vector<double> found;
  size_t next = 0;
  for (size_t sample = 0; sample + 1 < offsets.values.size(); ++sample) {
    const auto end = static_cast<int64_t>(offsets.values[sample + 1]);
    for (auto at = static_cast<int64_t>(offsets.values[sample]) + 1; at < end; ++at, ++next) {
      const auto row = logits.values.begin() + (at - 1) * vocab, best = std::max_element(row, row + vocab);
      double total = 0;
      for (auto logit = row; logit != row + vocab; ++logit) total += std::exp(*logit - *best);
      const auto token = static_cast<int64_t>(ids.values[static_cast<size_t>(at)]);
      const double log_prob = row[token] - *best - std::log(total);
      found.push_back(log_prob);
      sum += log_prob;
      exact_sum += log_probs.values.at(next);
      EXPECT_EQ(best - row == token, is_greedy.values[next] != 0) << "token " << at;
    }
  }
  ASSERT_EQ(next, log_probs.values.size());
  EXPECT_LE(largest_difference(found, log_probs.values), 1e-4);
  const auto tokens = static_cast<double>(next);
  EXPECT_NEAR(std::exp(-sum / tokens), std::exp(-exact_sum / tokens), 1e-4);
  EXPECT_LT(std::exp(-sum / tokens), 13) << "a model that has learned nothing has 1024";
}

TEST_P(SmallModelTest, GreedyTextsAreThoseOfTransformers) { expect_greedy_texts("openings", "openings.txt"); }
TEST_P(SmallModelTest, GreedyAnswersAreThoseOfTransformers) { expect_greedy_texts("messages", "messages.jsonl"); }

// What generation_config.json asks for is drawn, and ends where the model ends it.
TEST_P(SmallModelTest, DrawnTextsEnd) {
  run("messages.jsonl", {"--seed", "3", "--output", folder_ / "out.jsonl"});
  for (const Json& line : json_lines(read_bytes(folder_ / "out.jsonl"))) {
    EXPECT_EQ(line.at("finish_reason"), "stop");
    EXPECT_EQ(line.at("token_ids").back(), 4) << "the end of a message";
    EXPECT_GT(line.at("text").get<std::string>().size(), 10u);
  }
}

// stop_strings and min_new_tokens of a generation_config.json; options go before it.
TEST_P(SmallModelTest, TextsEndWhereTheModelsFileSays) {
  const std::vector<Json> expected = json_lines(read_bytes(kModel / "messages.expected.jsonl"));
  const auto drawn = [&](const std::string& file, std::vector<std::string> options) {
    write_bytes(folder_ / "g.json",
                R"({"do_sample": false, "eos_token_id": [2, 4], "max_new_tokens": 40)" + file + "}");
    options.insert(options.end(), {"--generation-config", folder_ / "g.json", "--output", folder_ / "out.jsonl"});
    run("messages.jsonl", options);
    return json_lines(read_bytes(folder_ / "out.jsonl"));
  };
  const std::vector<Json> stopped = drawn(R"(, "stop_strings": [",", "."])", {}),
                          later = drawn(R"(, "stop_strings": ",", "min_new_tokens": 12)", {}),
                          by_option = drawn(R"(, "stop_strings": ",", "min_new_tokens": 12)",
                                            {"--stop", " the", "--min-tokens", "0"});
  ASSERT_EQ(stopped.size(), expected.size());
  for (size_t line = 0; line < expected.size(); ++line) {
    const std::string text = expected[line].at("text");
    ASSERT_NE(text.find_first_of(",."), std::string::npos);
    EXPECT_EQ(stopped[line].at("text"), text.substr(0, text.find_first_of(",.")));
    EXPECT_EQ(stopped[line].at("finish_reason"), "stop");
    EXPECT_GE(later[line].at("token_ids").size(), 12u);
    EXPECT_TRUE(text.starts_with(later[line].at("text").get<std::string>())) << later[line];
    EXPECT_EQ(by_option[line].at("text"), text.substr(0, text.find(" the")));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SmallModelTest, testing::Values(1, 4));

}  // namespace
}  // namespace lfm2::test
