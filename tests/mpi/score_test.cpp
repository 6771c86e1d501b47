// --score under mpirun: what transformers gives, the same bits for every number of ranks, micro-batch, order and
// replica, and the same figures whether a run was stopped or not.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/json/json.h"
#include "stage/io/journal.h"
#include "support/golden.h"
#include "support/largest_difference.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Arguments = std::vector<std::string>;
constexpr double kTolerance = 1e-4;  // of a token's log-probability

const Json& golden() {
  static const Json scores = parse_json(read_bytes(golden_dir() / "scores.json"), "scores.json");
  return scores;
}

// Perplexity by `units` and its standard error, from the log-probabilities of an output, as NumPy computes them. The
// text of a log-probability is the shortest one that means its fp32.
std::pair<double, double> perplexity_of(const std::vector<Json>& lines, double units) {
  std::vector<double> values;
  for (const Json& line : lines)
    for (const Json& value : line.at("logprobs")) values.push_back(static_cast<double>(value.get<float>()));
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) squares += (value - sum / count) * (value - sum / count);
  const double perplexity = std::exp(-sum / units);
  return {perplexity, perplexity * std::sqrt(squares / (count - 1)) * std::sqrt(count) / units};
}

class ScoreTest : public testing::Test {
 protected:
  static Outcome run(int ranks, const Arguments& job, const Arguments& more, const Interruption& interruption = {}) {
    Arguments arguments{"--score"};
    for (const Arguments* part : {&job, &more}) arguments.insert(arguments.end(), part->begin(), part->end());
    return run_stage(ranks, arguments, interruption);
  }
  // The output of a job that succeeds.
  std::string output_of(int ranks, const Arguments& job, const std::string& name) {
    std::filesystem::remove(folder_ / name);
    const Outcome outcome = run(ranks, job, {"--output", folder_ / name, "--report", folder_ / "report.json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    out_ = outcome.out;
    return outcome.exit_code == 0 ? read_bytes(folder_ / name) : "";
  }
  Json report() const { return parse_json(read_bytes(folder_ / "report.json"), "report.json"); }

  // What is expected of a job: those lines, and the perplexity of their log-probabilities.
  void expect_scores(const std::vector<Json>& found, const Json& expected) const {
    ASSERT_EQ(found.size(), expected.at("logprobs").size());
    std::vector<double> all, all_expected;
    for (size_t i = 0; i < found.size(); ++i) {
      const Json &values = found[i].at("logprobs"), &others = expected.at("logprobs")[i];
      ASSERT_EQ(values.size(), others.size());
      EXPECT_EQ(found[i].at("tokens"), others.size());
      double sum = 0;
      for (size_t t = 0; t < values.size(); ++t) {
        all.push_back(values[t].get<double>());
        all_expected.push_back(others[t].get<double>());
        sum += all.back();
      }
      EXPECT_NEAR(found[i].at("sum_logprob"), sum, 1e-5);
      EXPECT_EQ(found[i].at("is_greedy"), expected.at("is_greedy")[i]) << "sample " << i;
    }
    // Of large logits transformers' own fp32 misses the tolerance, too: ours may be off by some times as much.
    const double tolerance = std::max(kTolerance, 3 * expected.value("own_error", 0.0));
    const double worst = largest_difference(all, all_expected);
    EXPECT_LE(worst, tolerance);
    testing::Test::RecordProperty("largest_difference", std::to_string(worst));
    expect_perplexity("token", found, report().at("scores").at("tokens"));
    const Json by_token = report().at("scores").at("perplexity").at("token");
    EXPECT_NEAR(by_token.at("value").get<double>() / expected.at("perplexity").get<double>(), 1, tolerance);
    EXPECT_NEAR(by_token.at("standard_error").get<double>() / expected.at("standard_error").get<double>(), 1,
                tolerance);
  }
  void expect_perplexity(const char* unit, const std::vector<Json>& found, double units) const {
    const Json scores = report().at("scores");
    const auto [value, error] = perplexity_of(found, units);
    EXPECT_NEAR(scores.at("perplexity").at(unit).at("value").get<double>() / value, 1, 1e-9);
    EXPECT_NEAR(scores.at("perplexity").at(unit).at("standard_error").get<double>() / error, 1, 1e-9);
  }
  void write_lines(const std::string& name, const std::vector<Json>& lines) const {
    std::string text;
    for (const Json& line : lines) text += json_text(line) + "\n";
    write_bytes(folder_ / name, text);
  }
  // Nothing follows a sample's last token, so a sample may have one more than the model has positions.
  void expect_one_token_more(const std::string& shards, size_t positions) {
    const Json &whole = golden().at("windows").at("input_ids")[0], &expected = golden().at("cases").at("tiny-dense");
    const Json ids(std::vector<Json>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(positions) + 1));
    write_lines("more.jsonl",
                {{{"input_ids", ids}}, {{"input_ids", {ids[0]}}, {"target", Json(ids.begin() + 1, ids.end())}}});
    const Arguments job{"--weights", shards, "--input", folder_ / "more.jsonl", "--dtype", "fp32"};
    const std::vector<Json> found = json_lines(output_of(2, job, "more.out.jsonl"));
    ASSERT_EQ(found.size(), 2u);
    ASSERT_EQ(found[0].at("logprobs").size(), positions);
    EXPECT_EQ(found[0].at("logprobs"), found[1].at("logprobs"));
    for (size_t t = 0; t < positions; ++t)
      EXPECT_NEAR(found[0].at("logprobs")[t].get<double>(), expected.at("logprobs")[0][t].get<double>(), kTolerance);
    write_lines("more.jsonl",
                {{{"input_ids", Json(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(positions) + 2)}}});
    const Outcome refused = run(1, job, {});
    EXPECT_EQ(refused.exit_code, 65);
    EXPECT_NE(refused.err.find("8 tokens, expected 1 to max_position_embeddings + 1 = 7"), std::string::npos)
        << refused.err;
  }
  std::string split() const {
    run_weights_tools({"split", folder_ / "model", "--stages", "2", "--out", folder_ / "shards"});
    return folder_ / "shards";
  }

  TemporaryFolder folder_;
  std::string out_;  // what the last job printed
};

class GoldenScoreTest : public ScoreTest, public testing::WithParamInterface<std::string> {};

TEST_P(GoldenScoreTest, AsTransformersAndTheSameBitsEverywhere) {
  const Array ids = read_array(golden_dir() / golden_source(GetParam()) / "golden.h5", "greedy");
  std::vector<Json> samples;
  for (size_t at = 0; at < ids.values.size(); ++at) {
    if (at % static_cast<size_t>(ids.dim(1)) == 0) samples.push_back({{"input_ids", Json::array()}});
    samples.back()["input_ids"].push_back(static_cast<int>(ids.values[at]));
  }
  write_lines("in.jsonl", samples);
  const std::string input = folder_ / "in.jsonl";
  const bool has_tokenizer = std::filesystem::exists(golden_dir() / golden_source(GetParam()) / "tokenizer.json");
  for (const std::string& dtype : golden_dtypes(GetParam())) {
    if (dtype == "fp16") continue;
    std::string first;
    Json scores;
    for (const int ranks : {1, 3, 4})
      for (const char* micro_batch : {"1", "5"}) {
        SCOPED_TRACE(testing::Message() << dtype << ", " << ranks << " ranks, micro-batch " << micro_batch);
        const Arguments job{"--weights",     golden_shards(GetParam(), ranks % 2 == 0 ? most_stages(GetParam()) : 1),
                            "--input",       input,
                            "--dtype",       dtype,
                            "--micro-batch", micro_batch};
        const std::string text = output_of(ranks, job, "o.jsonl");
        if (first.empty()) {
          first = text;
          scores = report().at("scores");
          if (dtype == "fp32") expect_scores(json_lines(text), golden().at("cases").at(GetParam()));
        }
        EXPECT_EQ(text, first);
        EXPECT_EQ(report().at("scores"), scores);
        EXPECT_NE(out_.find("\nperplexity "), std::string::npos) << out_;
        EXPECT_EQ(out_.find("by byte") != std::string::npos, has_tokenizer) << out_;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenScoreTest, testing::ValuesIn(with_fp8_bits(kGoldenCases)),
                         [](const auto& tested) { return test_name(tested.param); });

TEST_F(ScoreTest, DatasetsReplicasAndAnswers) {
  const Arguments job{"--weights", golden_shards("tiny-moe", 4), "--samples", "40", "--length", "9", "--dtype", "fp32"};
  const std::string whole = output_of(2, job, "whole.h5");
  const Json scores = report().at("scores");
  EXPECT_EQ(scores.at("tokens"), 40 * 8);
  for (const char* replicas : {"2", "4"}) {
    Arguments arguments = job;
    arguments.insert(arguments.end(),
                     {"--replicas", replicas, "--reference", folder_ / "whole.h5", "--tolerance", "0"});
    EXPECT_TRUE(output_of(4, arguments, "o.h5") == whole);
    EXPECT_EQ(report().at("scores"), scores);
    EXPECT_NE(out_.find("\nVALID      top-1 320/320, largest difference 0 (tolerance 0)\n"), std::string::npos) << out_;
  }
  EXPECT_EQ(run(2, job, {"--reference", folder_ / "whole.h5", "--seed", "1"}).exit_code, 1);
  const std::vector<Json> lines = json_lines(output_of(3, job, "o.jsonl"));
  const Array values = read_array(folder_ / "whole.h5", "logprobs"),
              offsets = read_array(folder_ / "whole.h5", "offsets");
  EXPECT_EQ(offsets.values.back(), 320);
  size_t row = 0;
  for (const Json& line : lines)
    for (const Json& value : line.at("logprobs")) EXPECT_EQ(value.get<float>(), values.values.at(row++));
}

TEST_F(ScoreTest, TheOrderOfLinesChangesNoBits) {
  std::vector<Json> lines;
  for (int i = 0; i < 12; ++i) {
    lines.push_back({{"id", i}, {"input_ids", Json::array()}});
    for (int t = 0; t < 2 + i * 3; ++t) lines.back()["input_ids"].push_back((t * 37 + i * 11) % 200);
    if (i % 3 == 0) lines.back()["target"] = {5, i};
  }
  const auto by_id = [&] {
    write_lines("in.jsonl", lines);
    std::vector<Json> found = json_lines(
        output_of(3, {"--weights", golden_shards("tiny-moe", 4), "--input", folder_ / "in.jsonl", "--micro-batch", "2"},
                  "o.jsonl"));
    std::sort(found.begin(), found.end(), [](const Json& a, const Json& b) { return a.at("id") < b.at("id"); });
    return std::pair(found, report().at("scores"));
  };
  const auto forward = by_id();
  EXPECT_EQ(forward.first.at(0).at("tokens"), 2);
  EXPECT_EQ(forward.first.at(1).at("tokens"), 4);
  std::reverse(lines.begin(), lines.end());
  EXPECT_EQ(by_id(), forward);
}

TEST_F(ScoreTest, LongTextsGoThroughInWindows) {
  const Json& expected = golden().at("windows");
  std::filesystem::create_directories(folder_ / "model");
  Json config = parse_json(read_bytes(golden_dir() / "tiny-dense/config.json"), "config.json");
  config["max_position_embeddings"] = expected.at("max_positions");
  write_bytes(folder_ / "model/config.json", json_text(config));
  std::filesystem::copy_file(golden_dir() / "tiny-dense/model.safetensors", folder_ / "model/model.safetensors");
  const std::string shards = split();
  std::vector<Json> lines;
  for (const Json& ids : expected.at("input_ids")) lines.push_back({{"input_ids", ids}});
  write_lines("in.jsonl", lines);
  const std::string stride = std::to_string(expected.at("stride").get<int>());
  const Arguments job{"--weights", shards, "--input", folder_ / "in.jsonl", "--dtype", "fp32"};
  std::string first;
  for (const int ranks : {1, 2, 4}) {
    Arguments arguments = job;
    arguments.insert(arguments.end(), {"--stride", stride, "--micro-batch", std::to_string(ranks)});
    const std::string text = output_of(ranks, arguments, "o.jsonl");
    if (first.empty()) expect_scores(json_lines(text), expected);
    if (first.empty()) first = text;
    EXPECT_EQ(text, first);
  }
  Arguments arguments = job;
  arguments.insert(arguments.end(), {"--stride", stride});
  const std::string whole = output_of(1, arguments, "o.h5");
  arguments.insert(arguments.end(), {"--replicas", "2"});
  EXPECT_TRUE(output_of(2, arguments, "o.h5") == whole);
  EXPECT_EQ(run(1, job, {}).exit_code, 65);  // without windows these are too long
  expect_one_token_more(shards, expected.at("max_positions"));
  EXPECT_EQ(run(1, job, {"--stride", std::to_string(expected.at("max_positions").get<int>())}).exit_code, 64);
}

TEST_F(ScoreTest, TextsAndTargets) {
  const Json& expected = golden().at("texts");
  write_bytes(folder_ / "config.json", json_text(expected.at("config")));
  run_weights_tools({"synth", "--config", folder_ / "config.json", "--dtype", "fp32", "--out", folder_ / "model"});
  write_bytes(folder_ / "model/tokenizer.json", read_bytes(golden_dir() / "text/tokenizer.json"));
  write_bytes(folder_ / "model/tokenizer_config.json", R"({"bos_token": "<|startoftext|>"})");
  const std::string shards = split();
  write_lines("in.jsonl", expected.at("lines"));
  const Arguments job{"--weights", shards, "--input", folder_ / "in.jsonl", "--dtype", "fp32"};
  std::string first;
  for (const int ranks : {1, 3}) {
    const std::string text = output_of(ranks, job, "o.jsonl");
    if (first.empty()) first = text;
    EXPECT_EQ(text, first);
  }
  const std::vector<Json> found = json_lines(first);
  expect_scores(found, expected);
  double bytes = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].at("bytes"), expected.at("bytes")[i]) << expected.at("lines")[i];
    bytes += found[i].at("bytes").get<double>();
  }
  expect_perplexity("byte", found, bytes);
  expect_perplexity("word", found, expected.at("words"));
  EXPECT_EQ(report().at("scores").at("words"), expected.at("words"));
  output_of(2, job, "o.h5");
  EXPECT_EQ(read_array(folder_ / "o.h5", "bytes").values, expected.at("bytes").get<std::vector<double>>());
}

TEST_F(ScoreTest, AStoppedRunEndsWithTheSameFigures) {
  const Arguments job{"--weights", golden_shards("tiny-moe", 4), "--samples", "2000", "--micro-batch", "8", "--length",
                      "24"};
  for (const char* name : {"o.h5", "o.jsonl"}) {
    SCOPED_TRACE(name);
    const std::string whole = output_of(2, job, name);
    const Json scores = report().at("scores");
    std::filesystem::remove(folder_ / name);
    Arguments arguments = job;
    arguments.insert(arguments.end(), {"--score", "--output", folder_ / name});
    {
      RunningProgram program(stage_command(2, arguments));
      for (int i = 0; i < 20000 && !any_finished(folder_ / name); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      program.signal(SIGUSR1);
      ASSERT_EQ(program.wait().exit_code, 75);
    }
    Arguments others = job;
    others.insert(others.end(), {"--output", folder_ / name, "--resume", "--logits", "all"});
    EXPECT_EQ(run_stage(2, others).exit_code, 64);  // that is no resumption
    const Outcome outcome = run(3, job, {"--output", folder_ / name, "--resume", "--report", folder_ / "report.json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_GT(report().at("kept_samples").get<int64_t>(), 0);
    EXPECT_TRUE(read_bytes(folder_ / name) == whole);
    EXPECT_EQ(report().at("scores"), scores);
  }
}

// A run that could not give its output the final name has finished all samples. What goes on has nothing to compute,
// and says the same figures.
TEST_F(ScoreTest, WhatIsFinishedHasItsFiguresWithoutARun) {
  const Arguments job{"--weights", golden_shards("tiny-moe", 4), "--samples", "2000", "--micro-batch", "8", "--length",
                      "24"};
  const auto figures = [](const std::string& text) {
    const size_t begin = text.find("scores "), end = text.find('\n', text.find("perplexity ", begin));
    return begin == std::string::npos ? "" : text.substr(begin, end - begin);
  };
  const std::string whole = output_of(2, job, "o.jsonl"), expected = figures(out_);
  EXPECT_NE(expected.find(" by token (46000)"), std::string::npos) << out_;
  std::filesystem::remove(folder_ / "o.jsonl");
  Arguments arguments = job;
  arguments.insert(arguments.end(), {"--score", "--output", folder_ / "o.jsonl"});
  {
    RunningProgram program(stage_command(2, arguments));
    for (int i = 0; i < 20000 && !any_finished(folder_ / "o.jsonl"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::filesystem::create_directory(folder_ / "o.jsonl");
    ASSERT_NE(program.wait().exit_code, 0);
  }
  std::filesystem::remove(folder_ / "o.jsonl");
  const Outcome outcome = run(2, job, {"--output", folder_ / "o.jsonl", "--resume"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("all 2000 samples were finished before"), std::string::npos) << outcome.out;
  EXPECT_EQ(figures(outcome.out), expected);
  EXPECT_TRUE(read_bytes(folder_ / "o.jsonl") == whole);
}

}  // namespace
}  // namespace lfm2::test
