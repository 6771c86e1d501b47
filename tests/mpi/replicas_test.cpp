// Scoring with --replicas, which share a job's samples while they run: the bytes, figures and ends of a job of one
// pipeline, whatever the form of the results and the lengths of the samples.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json/json.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class ReplicasTest : public testing::Test {
 protected:
  struct Run {
    std::string file;
    Json report;
  };
  Run run(int ranks, std::vector<std::string> arguments, const std::string& output,
          const std::vector<std::string>& more = {}) {
    const auto path = folder_ / output;
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--output", path, "--report", folder_ / "report.json"});
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    Run found{read_bytes(path), Json::parse(read_bytes(folder_ / "report.json"))};
    std::filesystem::remove_all(folder_ / "");
    std::filesystem::create_directory(folder_ / "");
    return found;
  }
  // Whatever a report says of the results.
  static Json results_of(const Json& report) {
    Json results;
    for (const char* key : {"results_xxh3", "samples", "tokens", "verdict", "scores", "perplexity"})
      if (report.contains(key)) results[key] = report.at(key);
    return results;
  }
  // Runs the job on one rank and on `ways`: {ranks, replicas}.
  void expect_same(const std::vector<std::string>& job, const std::string& output,
                   const std::vector<std::pair<int, int>>& ways) {
    const Run alone = run(1, job, output);
    for (const auto& [ranks, replicas] : ways) {
      SCOPED_TRACE(testing::Message() << output << ", " << replicas << " replicas on " << ranks << " ranks");
      const Run found = run(ranks, job, output, {"--replicas", std::to_string(replicas)});
      EXPECT_TRUE(found.file == alone.file);
      EXPECT_EQ(results_of(found.report), results_of(alone.report));
    }
  }
  // Samples of 1 to `longest` tokens in no order.
  std::string ragged_input(int samples, int longest) {
    const std::string path = inputs_ / "ragged.jsonl";
    std::ofstream input(path);
    for (int i = 0; i < samples; ++i)
      input << Json{{"id", fmt::format("s{}", i)},
                    {"input_ids", std::vector<int>(static_cast<size_t>(2 + i * i * 7 % longest), 5 + i % 50)}}
            << "\n";
    return path;
  }
  std::string embeddings_input(int lines) {
    const std::string path = inputs_ / "embeddings.jsonl";
    std::ofstream input(path);
    for (int i = 0; i < lines; ++i) {
      Json body{{"model", "m"}, {"encoding_format", i % 5 == 1 ? "base64" : "float"}};
      for (int part = 0; part <= i % 4; ++part)
        body["input"].push_back(std::vector<int>(static_cast<size_t>(1 + i * i * 7 % 200), 5 + i % 50));
      if (i % 7 == 3) body["input"] = 1;
      input << Json{{"custom_id", fmt::format("e{}", i)}, {"method", "POST"}, {"url", "/v1/embeddings"}, {"body", body}}
            << "\n";
    }
    return path;
  }
  static std::vector<std::string> scoring(const std::string& weights, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"--weights", golden_shards(weights, most_stages(weights)), "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TemporaryFolder folder_, inputs_;
};

TEST_F(ReplicasTest, WriteTheBytesOfOnePipeline) {
  expect_same(scoring("tiny-moe", {"--samples", "61", "--length", "7"}), "o.bin", {{2, 2}, {3, 3}});
  const std::vector<std::string> scores = scoring("tiny-moe", {"--input", ragged_input(40, 90), "--score"});
  expect_same(scores, "o.h5", {{4, 2}});
  expect_same(scores, "o.jsonl", {{6, 3}});
}

// Long samples go through two stages in parts; there are samples of a part for some replicas only.
TEST_F(ReplicasTest, WriteTheBytesOfOnePipelineCiTest) {
  const std::string ragged = ragged_input(24, 400), golden = golden_dir() / "tiny-moe" / "golden.h5";
  for (const std::vector<std::string>& results : {std::vector<std::string>{"--logits", "last"},
                                                  {"--logits", "all", "--top-logprobs", "3"},
                                                  {"--score"},
                                                  {"--hidden", "mean"},
                                                  {"--hidden", "all"},
                                                  {"--hidden", "last"}}) {
    std::vector<std::string> job = scoring("tiny-moe", {"--input", ragged});
    job.insert(job.end(), results.begin(), results.end());
    for (const char* output : {"o.h5", "o.jsonl"}) expect_same(job, output, {{3, 3}, {4, 2}});
  }
  expect_same(scoring("tiny-moe", {"--input", golden, "--logits", "all", "--dtype", "fp32", "--reference", golden}),
              "o.h5", {{2, 2}, {6, 3}});
  // Windows of one sample stay with one replica.
  const std::vector<std::string> windows =
      scoring("tiny-fp8-channel", {"--input", ragged_input(20, 900), "--score", "--stride", "100"});
  for (const char* output : {"o.h5", "o.jsonl"}) expect_same(windows, output, {{3, 3}, {4, 2}});
  // So do the inputs of one line, and refused lines are answered.
  expect_same(scoring("kjv-moe", {"--input", embeddings_input(30)}), "o.jsonl", {{3, 3}, {4, 2}});
  std::vector<std::string> ring = scoring("mini-24", {"--samples", "90", "--length", "9", "--virtual-stages", "2"});
  const std::string one = run(2, ring, "o.bin").file;
  EXPECT_TRUE(run(4, ring, "o.bin", {"--replicas", "2"}).file == one);
  EXPECT_TRUE(run(4, ring, "o.bin", {"--replicas", "2", "--micro-batch", "7"}).file == one);
}

// A replica that gets no sample ends with the others.
TEST_F(ReplicasTest, OfFewSamples) {
  for (const char* samples : {"1", "2"}) {
    const std::vector<std::string> job = scoring("tiny-moe", {"--samples", samples, "--length", "7"});
    expect_same(job, "o.h5", {{3, 3}});
    expect_same(job, "o.bin", {{4, 2}});
  }
}

// The cut of layers is chosen for at least one token a replica.
TEST_F(ReplicasTest, OfFewerTokensThanReplicas) {
  std::vector<std::string> job = scoring("tiny-moe", {"--samples", "1", "--length", "2"});
  const std::string alone = run(1, job, "o.h5").file;
  EXPECT_TRUE(run(6, job, "o.h5", {"--replicas", "3", "--balance"}).file == alone);
}

// While one replica computes a long sample, the other computes the short ones. Cut in advance, each would get half of
// the tokens.
TEST_F(ReplicasTest, SamplesGoToTheReplicaThatIsFree) {
  const std::string path = inputs_ / "in.jsonl";
  std::ofstream input(path);
  for (int i = 0; i < 200; ++i)
    input << Json{{"input_ids", std::vector<int>(i == 100 ? 3000 : 15, 5 + i % 50)}} << "\n";
  input.close();
  const Run found = run(2, scoring("mini-24", {"--input", path, "--hidden", "last", "--micro-batch", "1"}), "o.h5",
                        {"--replicas", "2"});
  EXPECT_EQ(found.report.at("samples"), 200);
  EXPECT_EQ(found.report.at("micro_batches"), 200);
  const int64_t first = found.report.at("stages")[0].at("micro_batches");
  EXPECT_GT(std::max(first, 200 - first), 115) << first;
}

}  // namespace
}  // namespace lfm2::test
