// --hidden under mpirun: what transformers gives, and the same bits for every number of ranks, micro-batch and replica,
// whether a run was stopped or not.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/json/json.h"
#include "stage/io/journal.h"
#include "stage/shards/shard_reader.h"
#include "support/golden.h"
#include "support/largest_difference.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Arguments = std::vector<std::string>;
// Of the largest magnitude of the states that are compared: how far one value may be from transformers'.
constexpr double kHiddenTolerance = 1e-4;

class HiddenTest : public testing::Test {
 protected:
  Outcome run(int ranks, const Arguments& job, const Arguments& more) const {
    Arguments arguments = job;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_stage(ranks, arguments);
  }
  // The states that a job gives, row by row; their width goes to `columns`.
  std::vector<double> states(int ranks, const Arguments& job, const Arguments& more, size_t& columns) const {
    const std::string file = folder_ / "o.h5";
    std::filesystem::remove(file);
    const Outcome outcome = run(ranks, job, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    if (outcome.exit_code != 0) return {};
    const Array found = read_array(file, "hidden");
    columns = static_cast<size_t>(found.dim(1));
    return found.values;
  }
  Json report() const { return parse_json(read_bytes(folder_ / "report.json"), "report.json"); }

  TemporaryFolder folder_;
};

// The last row of each sample, and the mean over its rows.
std::vector<double> last_rows(const std::vector<double>& all, const std::vector<size_t>& offsets, size_t columns) {
  std::vector<double> last;
  for (size_t sample = 0; sample + 1 < offsets.size(); ++sample)
    for (size_t i = 0; i < columns; ++i) last.push_back(all.at((offsets[sample + 1] - 1) * columns + i));
  return last;
}
std::vector<double> mean_rows(const std::vector<double>& all, const std::vector<size_t>& offsets, size_t columns) {
  std::vector<double> means;
  for (size_t sample = 0; sample + 1 < offsets.size(); ++sample)
    for (size_t i = 0; i < columns; ++i) {
      double sum = 0;
      for (size_t row = offsets[sample]; row < offsets[sample + 1]; ++row) sum += all.at(row * columns + i);
      const double mean = sum / static_cast<double>(offsets[sample + 1] - offsets[sample]);
      means.push_back(static_cast<double>(static_cast<float>(mean)));
    }
  return means;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  double scale = 0;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  EXPECT_GT(scale, 0);
  EXPECT_LE(largest_difference(found, expected), kHiddenTolerance * scale) << "largest magnitude " << scale;
}

class GoldenHiddenTest : public HiddenTest, public testing::WithParamInterface<std::string> {
 protected:
  GoldenHiddenTest() {
    const Array ids = read_array(golden_dir() / "hidden.h5", GetParam() + "/input_ids");
    for (const double offset : read_array(golden_dir() / "hidden.h5", GetParam() + "/offsets").values)
      offsets_.push_back(static_cast<size_t>(offset));
    std::string lines;
    for (size_t sample = 0; sample + 1 < offsets_.size(); ++sample) {
      Json line{{"input_ids", Json::array()}};
      for (size_t i = offsets_[sample]; i < offsets_[sample + 1]; ++i)
        line["input_ids"].push_back(static_cast<int>(ids.values[i]));
      lines += json_text(line) + "\n";
    }
    write_bytes(folder_ / "in.jsonl", lines);
    layers_ = ShardSet::open(golden_shards(GetParam(), 1)).config().layers;
  }
  // A job on the golden's samples; `layer` 0 is the final norm.
  std::vector<double> of(int ranks, const char* kind, int64_t layer, const char* dtype, const char* micro_batch) {
    // After layer N there are N layers, each of which can have a rank at most.
    const int most = static_cast<int>(layer > 0 ? layer : layers_);
    ranks = std::min(ranks, most);
    SCOPED_TRACE(testing::Message() << kind << " after layer " << layer << ", " << dtype << ", " << ranks
                                    << " ranks, micro-batch " << micro_batch);
    Arguments more{"--hidden", kind, "--output", folder_ / "o.h5"};
    if (layer > 0) more.insert(more.end(), {"--after-layer", std::to_string(layer)});
    return states(ranks,
                  {"--weights", golden_shards(GetParam(), ranks % 2 == 0 ? 4 : 1), "--input", folder_ / "in.jsonl",
                   "--dtype", dtype, "--micro-batch", micro_batch},
                  more, columns_);
  }

  std::vector<size_t> offsets_;
  int64_t layers_ = 0;
  size_t columns_ = 0;
};

TEST_P(GoldenHiddenTest, AsTransformersAndTheSameBitsEverywhere) {
  for (const char* dtype : {"fp32", "bf16"})
    for (const int64_t layer : {int64_t{0}, int64_t{1}, layers_ / 2, layers_}) {
      SCOPED_TRACE(testing::Message() << dtype << ", layer " << layer);
      if (layer > 0 && std::string_view(dtype) == "bf16") continue;  // fp32 tries what is special about them
      const std::vector<double> all = of(1, "all", layer, dtype, "0");
      ASSERT_EQ(all.size(), offsets_.back() * columns_);
      if (std::string_view(dtype) == "fp32") {
        const std::string name = layer > 0 ? "layer_" + std::to_string(layer) : "final";
        expect_near(all, read_array(golden_dir() / "hidden.h5", GetParam() + "/" + name).values);
      }
      if (layer == 1 || layer == layers_) continue;  // a cut behind the middle has all of it
      EXPECT_EQ(of(3, "all", layer, dtype, "1"), all);
      EXPECT_EQ(of(2, "mean", layer, dtype, "2"), mean_rows(all, offsets_, columns_));
      EXPECT_EQ(of(4, "last", layer, dtype, "2"), last_rows(all, offsets_, columns_));
    }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenHiddenTest, testing::ValuesIn(kGoldenCases), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Samples that are longer than a piece of results: their means are of several pieces.
TEST_F(HiddenTest, LongSamplesDatasetsLinesAndReplicas) {
  const Arguments job{"--weights", golden_shards("tiny-moe", 4), "--samples", "6", "--length", "300", "--dtype",
                      "fp32"};
  std::vector<size_t> offsets{0};
  for (size_t sample = 1; sample <= 6; ++sample) offsets.push_back(sample * 300);
  size_t columns = 0;
  const std::vector<double> all = states(1, job, {"--hidden", "all", "--output", folder_ / "o.h5"}, columns);
  ASSERT_EQ(all.size(), 1800 * columns);
  const auto expected = [&](const std::string& kind) {
    return kind == "all" ? all : kind == "mean" ? mean_rows(all, offsets, columns) : last_rows(all, offsets, columns);
  };
  for (const std::string kind : {"last", "mean", "all"}) {
    SCOPED_TRACE(kind);
    const Arguments more{"--hidden", kind, "--report", folder_ / "report.json", "--output"};
    const auto with = [&](Arguments others) {
      others.insert(others.begin(), more.begin(), more.end());
      return others;
    };
    EXPECT_EQ(states(2, job, with({folder_ / "o.h5"}), columns), expected(kind));
    const std::string whole = read_bytes(folder_ / "o.h5"), hash = report().at("results_xxh3");
    EXPECT_EQ(report().at("positions"), kind);
    EXPECT_EQ(report().at("states"), "after the final norm");
    EXPECT_EQ(read_array(folder_ / "o.h5", "offsets").values.back(), 1800);
    for (const char* replicas : {"2", "4"}) {
      EXPECT_EQ(states(4, job, with({folder_ / "o.h5", "--replicas", replicas}), columns), expected(kind));
      EXPECT_TRUE(read_bytes(folder_ / "o.h5") == whole);
      EXPECT_EQ(report().at("results_xxh3"), hash);
    }
    ASSERT_EQ(run(3, job, with({folder_ / "o.jsonl"})).exit_code, 0);
    EXPECT_EQ(report().at("results_xxh3"), hash);
    std::vector<double> values;
    std::istringstream lines(read_bytes(folder_ / "o.jsonl"));
    int64_t id = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json json = parse_json(line, "line");
      EXPECT_EQ(json.at("id"), id++);
      const Json rows = kind == "all" ? json.at("hidden") : Json::array({json.at("hidden")});
      for (const Json& row : rows)
        for (const Json& value : row) values.push_back(static_cast<double>(value.get<float>()));
    }
    EXPECT_EQ(values, expected(kind));
  }
}

TEST_F(HiddenTest, AStoppedRunEndsWithTheSameFile) {
  const Arguments job{"--weights", golden_shards("tiny-moe", 4), "--samples", "2000", "--micro-batch", "8", "--length",
                      "24"};
  for (const char* name : {"o.h5", "o.jsonl"})
    for (const char* kind : {"mean", "all"}) {
      SCOPED_TRACE(testing::Message() << name << ", " << kind);
      const Arguments more{"--hidden", kind, "--after-layer", "5", "--output", folder_ / name};
      std::filesystem::remove(folder_ / name);
      ASSERT_EQ(run(2, job, more).exit_code, 0);
      const std::string whole = read_bytes(folder_ / name);
      std::filesystem::remove(folder_ / name);
      Arguments arguments = job;
      arguments.insert(arguments.end(), more.begin(), more.end());
      {
        RunningProgram program(stage_command(2, arguments));
        for (int i = 0; i < 20000 && !any_finished(folder_ / name); ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        program.signal(SIGUSR1);
        ASSERT_EQ(program.wait().exit_code, 75);
      }
      arguments.push_back("--resume");
      Arguments other = arguments;
      *std::find(other.begin(), other.end(), "5") = "4";
      EXPECT_EQ(run_stage(2, other).exit_code, 64);  // that is no resumption
      const Outcome outcome = run_stage(3, arguments);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_NE(outcome.out.find("\nresumed "), std::string::npos) << outcome.out;
      EXPECT_TRUE(read_bytes(folder_ / name) == whole);
    }
}

TEST_F(HiddenTest, OnlyTheFirstLayersAreLoadedAndNoHead) {
  const Arguments job{"--weights", golden_shards("tiny-moe", 4), "--samples", "4"};
  const auto weights = [&](const Arguments& more) {
    Arguments arguments = more;
    arguments.insert(arguments.end(), {"--report", folder_ / "report.json"});
    const Outcome outcome = run(2, job, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    int64_t bytes = 0;
    const Json made = report();
    for (const Json& stage : made.at("stages")) bytes += stage.at("weight_bytes").get<int64_t>();
    return bytes;
  };
  const int64_t logits = weights({}), final_norm = weights({"--hidden", "last"}),
                layers = weights({"--hidden", "last", "--after-layer", "8"});
  EXPECT_LT(final_norm, logits);
  EXPECT_LT(layers, final_norm);
  EXPECT_LT(weights({"--hidden", "last", "--after-layer", "4"}), layers / 2 + layers / 4);
  EXPECT_EQ(report().at("layers"), 4);
  EXPECT_EQ(report().at("states"), "after layer 4");
}

TEST_F(HiddenTest, Refusals) {
  const Arguments job{"--weights", golden_shards("tiny-moe", 4), "--samples", "4"};
  const auto expect_refused = [&](int ranks, int code, const std::string& reason, const Arguments& more) {
    const Outcome outcome = run(ranks, job, more);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
  };
  expect_refused(2, 64, "--after-layer 9: expected at most num_hidden_layers = 8",
                 {"--hidden", "last", "--after-layer", "9"});
  expect_refused(3, 69, "3 ranks for the first 2 layers", {"--hidden", "mean", "--after-layer", "2"});
  expect_refused(2, 64, "add up to the model's 2 layers",
                 {"--hidden", "mean", "--after-layer", "2", "--layers", "2,2"});
  expect_refused(1, 64, "expected .h5 or .jsonl", {"--hidden", "last", "--output", folder_ / "o.bin"});
  write_bytes(folder_ / "in.jsonl", "{\"input_ids\": [1, 2]}\n{\"prompt\": [1, 2]}\n");
  expect_refused(2, 65, "with --hidden", {"--hidden", "all", "--input", folder_ / "in.jsonl"});
}

}  // namespace
}  // namespace lfm2::test
