// Generation by the program under mpirun: the greedy texts of transformers for any number of ranks, the bits of
// scoring, and the content of the files.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/checked_file.h"
#include "base/json/json.h"
#include "comm/launch.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// With dequantised weights of those in fp8, too.
class GenerationRunTest : public testing::TestWithParam<std::string> {
 protected:
  std::string golden() const { return golden_dir() / golden_source(GetParam()) / "golden.h5"; }
  TemporaryFolder folder_;
};

TEST_P(GenerationRunTest, GreedyIsTransformersGreedy) {
  const Array greedy = read_array(golden(), "greedy"), ids = read_array(golden(), "input_ids");
  const int64_t length = ids.dim(1), whole = greedy.dim(1);
  struct Way {
    int ranks;
    std::vector<std::string> options;
  };
  for (const Way& way : {Way{1, {}}, Way{2, {"--page-size", "1"}}, Way{3, {"--page-size", "16", "--micro-batch", "1"}},
                         Way{4, {"--max-num-seqs", "2", "--max-batched-tokens", "3"}}, Way{4, {"--replicas", "2"}}}) {
    SCOPED_TRACE(testing::Message() << way.ranks << " ranks");
    std::vector<std::string> arguments{"--weights",
                                       golden_shards(GetParam(), most_stages(GetParam())),
                                       "--input",
                                       golden(),
                                       "--dtype",
                                       "fp32",
                                       "--max-tokens",
                                       std::to_string(whole - length),
                                       "--ignore-eos",
                                       "--output",
                                       folder_ / "out.jsonl"};
    arguments.insert(arguments.end(), way.options.begin(), way.options.end());
    const Outcome outcome = run_stage(way.ranks, arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::vector<Json> lines = read_lines(folder_ / "out.jsonl");
    ASSERT_EQ(static_cast<int64_t>(lines.size()), greedy.dim(0));
    for (int64_t sample = 0; sample < greedy.dim(0); ++sample) {
      const Json& line = lines[static_cast<size_t>(sample)];
      const auto first = greedy.values.begin() + sample * whole + length;
      EXPECT_EQ(line.at("id"), sample);
      EXPECT_EQ(line.at("finish_reason"), "length");
      EXPECT_EQ(line.at("token_ids").get<std::vector<int32_t>>(),
                std::vector<int32_t>(first, first + (whole - length)));
    }
  }
}

// The log-probabilities of generated tokens are, bit for bit, those that scoring the finished texts gives.
void expect_bits_of_scoring(const TemporaryFolder& folder, const std::string& golden_case, const std::string& golden,
                            const std::string& dtype, const std::string& cache_dtype = "auto") {
  const Array greedy = read_array(golden, "greedy"), ids = read_array(golden, "input_ids");
  const int64_t length = ids.dim(1), whole = greedy.dim(1), samples = greedy.dim(0);
  const std::vector<std::string> common{"--weights",      golden_shards(golden_case, most_stages(golden_case)),
                                        "--dtype",        dtype,
                                        "--cache-dtype",  cache_dtype,
                                        "--top-logprobs", "3"};
  std::vector<std::string> generate = common, score = common;
  generate.insert(generate.end(), {"--input", golden, "--max-tokens", std::to_string(whole - length), "--ignore-eos",
                                   "--output", folder / "out.h5"});
  Outcome outcome = run_stage(2, generate);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Array tokens = read_array(folder / "out.h5", "token_ids"),
              log_probs = read_array(folder / "out.h5", "logprobs"),
              top = read_array(folder / "out.h5", "top_logprobs"), offsets = read_array(folder / "out.h5", "offsets");
  ASSERT_EQ(offsets.values.back(), static_cast<double>(samples * (whole - length)));

  std::ofstream input(folder / "texts.jsonl");
  for (int64_t sample = 0; sample < samples; ++sample) {
    Json line;
    for (int64_t t = 0; t + 1 < whole; ++t)
      line["input_ids"].push_back(
          static_cast<int>(t < length ? ids.values[static_cast<size_t>(sample * length + t)]
                                      : tokens.values[static_cast<size_t>(sample * (whole - length) + t - length)]));
    input << line << "\n";
  }
  input.close();
  score.insert(score.end(), {"--input", folder / "texts.jsonl", "--logits", "all", "--output", folder / "scores.h5"});
  outcome = run_stage(1, score);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Array scored = read_array(folder / "scores.h5", "top_logprobs");
  for (int64_t sample = 0; sample < samples; ++sample)
    for (int64_t token = 0; token < whole - length; ++token) {
      const auto generated = static_cast<size_t>(sample * (whole - length) + token);
      const auto row = static_cast<size_t>(sample * (whole - 1) + length - 1 + token);
      EXPECT_EQ(log_probs.values[generated], scored.values[3 * row]) << "sample " << sample << ", token " << token;
      for (size_t k = 0; k < 3; ++k) EXPECT_EQ(top.values[3 * generated + k], scored.values[3 * row + k]);
    }
}

INSTANTIATE_TEST_SUITE_P(Golden, GenerationRunTest, testing::ValuesIn([] {
                           std::vector<std::string> cases = kGoldenCases;
                           cases.emplace_back("tiny-fp8-channel");
                           return cases;
                         }()),
                         [](const auto& tested) { return test_name(tested.param); });

class GoldenGenerationBitsTest : public GenerationRunTest {};

TEST_P(GoldenGenerationBitsTest, LogProbabilitiesAreThoseOfScoring) {
  for (const std::string& dtype : golden_dtypes(GetParam())) {
    for (const char* cache_dtype : {"auto", "fp8"}) {
      SCOPED_TRACE(dtype + ", keys and values " + cache_dtype);
      std::filesystem::remove(folder_ / "out.h5");
      std::filesystem::remove(folder_ / "scores.h5");
      expect_bits_of_scoring(folder_, GetParam(), golden(), dtype, cache_dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenGenerationBitsTest, testing::ValuesIn(with_fp8_bits(kGoldenCases)),
                         [](const auto& tested) { return test_name(tested.param); });

// Keys and values in fp8: one rank's bits of texts and of scores for all ranks, pages, chunks, micro-batches and
// replicas.
class Fp8CacheTest : public testing::Test {
 protected:
  std::string results_of(int ranks, std::vector<std::string> arguments, const std::vector<std::string>& options) const {
    arguments.insert(arguments.end(), {"--cache-dtype", "fp8", "--report", folder_ / "report.json"});
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json report = Json::parse(read_bytes(folder_ / "report.json"));
    EXPECT_EQ(report.at("cache_dtype"), "fp8");
    return report.at("results_xxh3").get<std::string>();
  }
  TemporaryFolder folder_;
};

TEST_F(Fp8CacheTest, GenerationHasTheBitsOfOneRank) {
  const std::vector<std::string> job{"--weights",
                                     golden_shards("tiny-moe", 4),
                                     "--samples",
                                     "13",
                                     "--length",
                                     "40",
                                     "--max-tokens",
                                     "20",
                                     "--temperature",
                                     "1",
                                     "--ignore-eos",
                                     "--top-logprobs",
                                     "2"};
  const std::string one = results_of(1, job, {});
  EXPECT_EQ(results_of(1, job, {"--page-size", "1", "--max-batched-tokens", "7"}), one);
  EXPECT_EQ(results_of(2, job, {"--max-batched-tokens", "16", "--micro-batch", "1"}), one);
  EXPECT_EQ(results_of(4, job, {"--page-size", "16", "--max-num-seqs", "3"}), one);
  EXPECT_EQ(results_of(4, job, {"--replicas", "2"}), one);
}

TEST_F(Fp8CacheTest, ScoringHasTheBitsOfOneRank) {
  const std::vector<std::string> job{
      "--weights", golden_shards("tiny-moe", 4), "--samples", "13", "--length", "40", "--logits", "all"};
  const std::string one = results_of(1, job, {});
  EXPECT_EQ(results_of(2, job, {"--micro-batch", "1", "--virtual-stages", "2"}), one);
  EXPECT_EQ(results_of(4, job, {"--micro-batch", "3"}), one);
  EXPECT_EQ(results_of(4, job, {"--replicas", "2"}), one);
}

TEST(GenerationRunTest, DrawnTextsAreTheSameForAnyRanks) {
  const TemporaryFolder folder;
  for (const char* golden_case : {"mini-24.block-all", "tiny-moe"}) {
    SCOPED_TRACE(golden_case);
    std::vector<Json> first;
    for (const int ranks : {1, 2, 4})
      for (const char* most : {"3", "64"}) {
        const Outcome outcome = run_stage(ranks, {"--weights",      golden_shards(golden_case, 4),
                                                  "--samples",      "20",
                                                  "--length",       "9",
                                                  "--seed",         "11",
                                                  "--max-tokens",   "30",
                                                  "--eos",          "3,5,7",
                                                  "--temperature",  "1.3",
                                                  "--top-k",        "50",
                                                  "--top-p",        "0.95",
                                                  "--max-num-seqs", most,
                                                  "--output",       folder / "out.jsonl"});
        ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
        const std::vector<Json> lines = read_lines(folder / "out.jsonl");
        if (first.empty()) first = lines;
        EXPECT_EQ(lines, first) << ranks << " ranks, " << most << " at a time";
      }
    const auto stopped =
        std::count_if(first.begin(), first.end(), [](const Json& line) { return line.at("finish_reason") == "stop"; });
    EXPECT_GT(stopped, 0);
    EXPECT_LT(stopped, 20);
  }
}

// Sizes far larger than the work cost nothing.
TEST(GenerationRunTest, HugeChunksAndPages) {
  const TemporaryFolder folder;
  std::vector<std::string> written;
  for (const std::vector<std::string>& sizes :
       {std::vector<std::string>{}, {"--max-batched-tokens", "200000000", "--page-size", "1048576"}}) {
    std::vector<std::string> arguments{
        "--weights", golden_shards("tiny-moe", 4), "--samples", "6", "--length", "9", "--max-tokens", "5",
        "--output",  folder / "out.jsonl"};
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    const Outcome outcome = run_stage(2, arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    std::ifstream file(folder / "out.jsonl");
    written.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  EXPECT_EQ(written[0], written[1]);
}

// Where ranks take turns each has all processors. Two texts at a time keep two ranks busy, which share them.
TEST(GenerationRunTest, RanksThatTakeTurnsHaveAllProcessors) {
  if (on_gpus()) GTEST_SKIP() << "threads are those of CPUs";
  const ProcessorLimits limits = find_processor_limits();
  const int processors = limits.share(1, 1);
  if (processors < 2) GTEST_SKIP() << "one processor cannot be shared";
  const TemporaryFolder folder;
  struct Way {
    const char *texts, *at_a_time;
    int threads;
  };
  for (const Way& way : {Way{"1", "0", processors}, Way{"2", "0", limits.share(2, 2)}, Way{"2", "1", processors}}) {
    const Outcome outcome = run_stage(
        2, {"--weights", golden_shards("tiny-moe", 4), "--samples", way.texts, "--length", "4", "--max-tokens", "3",
            "--max-num-seqs", way.at_a_time, "--balance", "--threads", "0", "--report", folder / "report.json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json report = Json::parse(read_text_file(folder / "report.json", 1 << 20));
    EXPECT_EQ(report.at("stages").size(), 2u);
    for (const Json& stage : report.at("stages"))
      EXPECT_NE(stage.at("device").get<std::string>().find(fmt::format(" {} thread", way.threads)), std::string::npos)
          << stage;
  }
}

// Byte for byte what one pipeline writes, run for run.
TEST(GenerationRunTest, ReplicasWriteOneFile) {
  const TemporaryFolder folder;
  for (const std::string ending : {".jsonl", ".h5", ".fp8.jsonl"}) {
    const bool fp8 = ending == ".fp8.jsonl";
    const auto file_of = [&](const std::string& name, const std::vector<std::string>& options) {
      std::vector<std::string> arguments{
          "--weights",      fp8 ? golden_shards("tiny-fp8-channel", 2) : golden_shards("tiny-moe", 4),
          "--samples",      "37",
          "--length",       "9",
          "--max-tokens",   "20",
          "--temperature",  "1",
          "--top-logprobs", "2",
          "--output",       folder / (name + ending),
          "--report",       folder / (name + ".json")};
      arguments.insert(arguments.end(), options.begin(), options.end());
      const Outcome outcome = run_stage(4, arguments);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      return std::pair(read_bytes(folder / (name + ending)),
                       Json::parse(read_bytes(folder / (name + ".json"))).at("results_xxh3"));
    };
    const auto one = file_of("one", {});
    EXPECT_GT(one.first.size(), 1000u);
    EXPECT_TRUE(file_of("two", {"--replicas", "2"}) == one);
    EXPECT_TRUE(file_of("four", {"--replicas", "4", "--max-num-seqs", "3"}) == one);
    EXPECT_TRUE(file_of("again", {"--replicas", "4", "--benchmark", "--warmup", "1", "--repeat", "2"}) == one);
  }
}

// A pipeline with little work waits for the others for as long as they make progress.
TEST(GenerationRunTest, UnequalReplicas) {
  const TemporaryFolder folder;
  std::ofstream input(folder / "in.jsonl");
  for (const int length : {400, 3})
    input << Json{{"input_ids", std::vector<int>(static_cast<size_t>(length), 7)}} << "\n";
  input.close();
  const Outcome outcome =
      run_stage(2, {"--weights", golden_shards("mini-24", 4), "--input", folder / "in.jsonl", "--replicas", "2",
                    "--max-tokens", "600", "--ignore-eos", "--timeout", "1", "--output", folder / "out.jsonl"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(read_lines(folder / "out.jsonl").size(), 2u);
}

// While one replica writes a long text, the other computes the short ones. A cut in advance would give it half of them.
TEST(GenerationRunTest, SamplesGoToTheReplicaThatIsFree) {
  constexpr int kShort = 100, kTokens = 5;
  const TemporaryFolder folder;
  std::ofstream input(folder / "in.jsonl");
  for (int i = 0; i <= kShort; ++i)
    input << Json{{"input_ids", {7, i}}, {"max_tokens", i == 0 ? 600 : kTokens}} << "\n";
  input.close();
  const Outcome outcome = run_stage(2, {"--weights", golden_shards("mini-24", 4), "--input", folder / "in.jsonl",
                                        "--replicas", "2", "--max-num-seqs", "1", "--max-tokens", "1", "--ignore-eos",
                                        "--output", folder / "out.jsonl", "--report", folder / "report.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(read_lines(folder / "out.jsonl").size(), kShort + 1u);
  const Json stages = Json::parse(read_bytes(folder / "report.json")).at("stages");
  const int64_t first = stages[0]["generation"]["tokens"], second = stages[1]["generation"]["tokens"];
  EXPECT_EQ(first + second, 600 + kShort * kTokens);
  EXPECT_GT(first < 600 ? first : second, kShort * kTokens / 2 * 5 / 4) << first << " and " << second;
}

TEST(GenerationRunTest, Refusals) {
  const TemporaryFolder folder;
  const std::string shards = golden_shards("tiny-moe", 4);
  const auto refused = [&](const std::vector<std::string>& options, int exit_code, const std::string& reason) {
    std::vector<std::string> arguments{"--weights", shards, "--max-tokens", "4"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_stage(2, arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.err;
  };
  refused({"--output", folder / "out.bin"}, 64, "expected a name ending in .h5 or .jsonl");
  refused({"--reference", "a.bin"}, 64, "--reference with --max-tokens");
  refused({"--eos", "3", "--ignore-eos"}, 64, "--eos excludes --ignore-eos");
  refused({"--top-p", "1.5"}, 64, "--top-p");
  refused({"--top-p", "nan"}, 64, "--top-p: \"nan\"");
  refused({"--temperature", "nan"}, 64, "--temperature: \"nan\"");
  refused({"--eos", "3,99999"}, 64, "--eos 99999: expected at most");
  refused({"--length", "4096"}, 65, "expected");
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

}  // namespace
}  // namespace lfm2::test
