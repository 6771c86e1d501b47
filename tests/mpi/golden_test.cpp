// The program under mpirun with every golden case: results close to fp64, and the same bits for all numbers of ranks
// and micro-batches.
#include "support/golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/checked_file.h"
#include "base/json/json.h"
#include "support/largest_difference.h"
#include "support/program.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

class GoldenRunTest : public testing::TestWithParam<std::string> {};
class GoldenBitsTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenRunTest, RightAndTheSameBitsEverywhere) {
  const std::filesystem::path golden = golden_dir() / GetParam() / "golden.h5";
  const Array expected = read_array(golden, "logits_f64"), reference = read_array(golden, "logits");
  const double own_error = largest_difference(reference.values, expected.values);
  const TemporaryFolder folder;
  const std::vector<std::string> machine = machine_options();
  const bool nccl = std::find(machine.begin(), machine.end(), "nccl") != machine.end();
  std::vector<double> first;
  for (int ranks : {1, 2, 3, 4, 8})
    for (const char* micro_batch : {"1", "2", "5"}) {
      if (nccl && ranks > 4) continue;  // each rank needs a GPU
      SCOPED_TRACE(testing::Message() << ranks << " ranks, micro-batch " << micro_batch);
      const std::string output = folder / "out.h5";
      // Shards that were split for four stages and for one stage give the same.
      const std::string shards = golden_shards(GetParam(), ranks % 2 == 0 ? 4 : 1);
      const Outcome outcome = run_stage(
          ranks, {"--weights", shards, "--input", golden, "--logits", "all", "--dtype", "fp32", "--micro-batch",
                  micro_batch, "--output", output, "--reference", golden, "--tolerance", "1e-3"});
      if (GetParam() == "tiny-dense" && ranks == 8) {
        EXPECT_EQ(outcome.exit_code, 69) << outcome.err;
        continue;
      }
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_NE(outcome.out.find("\nVALID"), std::string::npos) << outcome.out;
      const Array found = read_array(output, "logits");
      ASSERT_EQ(found.values.size(), expected.values.size());
      if (first.empty()) {
        first = found.values;
        const double error = largest_difference(first, expected.values);
        EXPECT_LE(error, 3 * own_error);
        RecordProperty("error_over_reference_error", std::to_string(error / own_error));
      }
      EXPECT_EQ(std::memcmp(first.data(), found.values.data(), first.size() * sizeof(double)), 0) << "other bits";
    }
}

TEST_P(GoldenRunTest, Bf16IsAsCloseAsTransformersOwn) {
  const std::filesystem::path golden = golden_dir() / GetParam();
  const Array expected = read_array(golden / "golden.h5", "logits_f64"),
              theirs = read_array(golden / "bf16.h5", "logits_bf16");
  const TemporaryFolder folder;
  const Outcome outcome = run_stage(4, {"--weights", golden_shards(GetParam(), 4), "--input", golden / "golden.h5",
                                        "--logits", "all", "--dtype", "bf16", "--output", folder / "out.h5"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Array ours = read_array(folder / "out.h5", "logits");
  const double their_error = largest_difference(theirs.values, expected.values);
  ASSERT_LE(bf16_difference(GetParam(), ours.values, expected.values),
            bf16_difference(GetParam(), theirs.values, expected.values));
  const auto columns = expected.dims.back();
  for (auto row = expected.values.begin(), our_row = ours.values.begin(); row != expected.values.end();
       row += columns, our_row += columns) {
    const auto best = std::max_element(row, row + columns);
    double second = -1e30;
    for (auto other = row; other != row + columns; ++other)
      if (other != best) second = std::max(second, *other);
    if (*best - second <= their_error) continue;  // where two logits are this close, rounding may choose either
    EXPECT_EQ(std::max_element(our_row, our_row + columns) - our_row, best - row);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenRunTest, testing::ValuesIn(kGoldenCases),
                         [](const auto& tested) { return test_name(tested.param); });

TEST_P(GoldenBitsTest, TheOrderOfSamplesChangesNoBits) {
  const Array ids = read_array(golden_dir() / golden_source(GetParam()) / "golden.h5", "input_ids");
  const TemporaryFolder folder;
  const auto rows_of = [&](bool reversed) {
    std::ofstream input(folder / "in.jsonl");
    for (int64_t i = 0; i < ids.dim(0); ++i) {
      const int64_t sample = reversed ? ids.dim(0) - 1 - i : i;
      Json line;
      for (int64_t t = 0; t < ids.dim(1); ++t)
        line["input_ids"].push_back(static_cast<int>(ids.values[static_cast<size_t>(sample * ids.dim(1) + t)]));
      input << line << "\n";
    }
    input.close();
    const Outcome outcome = run_stage(
        3, {"--weights", golden_shards(GetParam(), most_stages(GetParam())), "--input", folder / "in.jsonl", "--dtype",
            golden_dtypes(GetParam()).front(), "--micro-batch", "2", "--output", folder / "out.h5"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_array(folder / "out.h5", "logits");
  };
  const Array forward = rows_of(false), backward = rows_of(true);
  const int64_t columns = forward.dim(1);
  for (int64_t i = 0; i < ids.dim(0); ++i)
    EXPECT_TRUE(std::equal(forward.values.begin() + i * columns, forward.values.begin() + (i + 1) * columns,
                           backward.values.begin() + (ids.dim(0) - 1 - i) * columns))
        << "sample " << i;
}

// Behind the last attention layer only the last tokens of each sample go on, where only last positions are wanted. The
// bits are the same as with all tokens, for samples of one token and more and cuts in any stage.
TEST_P(GoldenBitsTest, LastPositionsAreThoseOfAllPositions) {
  const Array ids = read_array(golden_dir() / golden_source(GetParam()) / "golden.h5", "input_ids");
  const TemporaryFolder folder;
  std::vector<int64_t> ends;
  {
    std::ofstream input(folder / "in.jsonl");
    for (int64_t length = 1; length <= std::min<int64_t>(ids.dim(1), 11); ++length) {
      Json line;
      for (int64_t t = 0; t < length; ++t)
        line["input_ids"].push_back(
            static_cast<int>(ids.values[static_cast<size_t>(length % ids.dim(0) * ids.dim(1) + t)]));
      input << line << "\n";
      ends.push_back((ends.empty() ? 0 : ends.back()) + length);
    }
  }
  const std::vector<std::string> machine = machine_options();
  const bool nccl = std::find(machine.begin(), machine.end(), "nccl") != machine.end();
  for (const std::string& dtype : golden_dtypes(GetParam())) {
    if (dtype == "fp16" && GetParam() != "tiny-moe") continue;
    const auto logits = [&](int ranks, const char* positions) {
      const Outcome outcome = run_stage(
          ranks, {"--weights", golden_shards(GetParam(), most_stages(GetParam())), "--input", folder / "in.jsonl",
                  "--dtype", dtype, "--logits", positions, "--micro-batch", "3", "--output", folder / "out.h5"});
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      return read_array(folder / "out.h5", "logits");
    };
    const Array all = logits(1, "all");
    const auto columns = all.dim(1);
    const int most = nccl || GetParam() == "tiny-fp8-channel" ? 4
                     : GetParam() == "tiny-dense"             ? 5
                     : GetParam() == "mini-24"                ? 24
                                                              : 6;
    for (const int ranks : {1, 2, 4, most}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << dtype);
      const Array last = logits(ranks, "last");
      ASSERT_EQ(last.dim(0), static_cast<int64_t>(ends.size()));
      for (size_t sample = 0; sample < ends.size(); ++sample)
        EXPECT_TRUE(std::equal(last.values.begin() + static_cast<int64_t>(sample) * columns,
                               last.values.begin() + (static_cast<int64_t>(sample) + 1) * columns,
                               all.values.begin() + (ends[sample] - 1) * columns))
            << "sample " << sample;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenBitsTest, testing::ValuesIn(with_fp8_bits(kGoldenCases)),
                         [](const auto& tested) { return test_name(tested.param); });

TEST(ProgramTest, BuiltInJobWithNothingElse) {
  const Outcome outcome = run_stage(4, {"--weights", golden_shards("tiny-moe", 4)});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("1024 samples, 32768 tokens, last-position logits"), std::string::npos) << outcome.out;
  EXPECT_TRUE(outcome.error_lines().empty()) << outcome.err;
}

TEST(ProgramTest, UnevenLayersGiveTheSameResults) {
  const std::string golden = golden_dir() / "mini-24" / "golden.h5";
  const auto hash_of = [&](int ranks, const std::vector<std::string>& more) {
    const TemporaryFolder folder;
    std::vector<std::string> arguments = {"--weights", golden_shards("mini-24", 4), "--input", golden,
                                          "--report",  folder / "r.json",           "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return Json::parse(read_text_file(folder / "r.json", 1 << 20)).at("results_xxh3").get<std::string>();
  };
  const std::string equal = hash_of(4, {});
  EXPECT_EQ(equal.size(), 32u);
  EXPECT_EQ(hash_of(4, {"--layers", "1,2,20,1"}), equal);
  EXPECT_EQ(hash_of(2, {"--layers", "23,1"}), equal);
  EXPECT_EQ(hash_of(1, {"--threads", "3"}), equal);
  EXPECT_EQ(hash_of(3, {"--benchmark", "--warmup", "1", "--repeat", "2"}), equal);
  EXPECT_NE(hash_of(4, {"--dtype", "bf16"}), equal);
}

// Pipelines side by side, and cuts of other sizes, give the same file byte for byte.
TEST(ProgramTest, ReplicasAndBalanceGiveTheSameFile) {
  const TemporaryFolder folder;
  std::string shards = golden_shards("tiny-moe", 4);
  const auto file_of = [&](int ranks, const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"--weights", shards,     "--samples",   "13",     "--length",
                                       "6",         "--output", folder / name, "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_text_file(folder / name, 1 << 24);
  };
  for (const std::vector<std::string>& kind : {std::vector<std::string>{"--dtype", "fp8", "--logits", "all"},
                                               {"--dtype", "fp32"},
                                               {"--dtype", "fp32", "--logits", "all"},
                                               {"--dtype", "fp32", "--top-logprobs", "3"}}) {
    shards = kind[1] == "fp8" ? golden_shards("tiny-fp8-channel", 2) : golden_shards("tiny-moe", 4);
    const std::string plain = file_of(2, "plain.h5", kind);
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), kind.begin(), kind.end());
      return more;
    };
    EXPECT_TRUE(file_of(4, "two.h5", with({"--replicas", "2"})) == plain);
    EXPECT_TRUE(file_of(3, "three.h5", with({"--replicas", "3"})) == plain);
    EXPECT_TRUE(file_of(4, "balanced.h5", with({"--balance"})) == plain);
  }
  EXPECT_TRUE(file_of(4, "b.bin", {"--replicas", "4"}) == file_of(1, "a.bin", {}));
  EXPECT_EQ(run_stage(3, {"--weights", shards, "--replicas", "2"}).exit_code, 64);
}

TEST(ProgramTest, ReplicasJudgeTogether) {
  const std::string golden = golden_dir() / "tiny-moe" / "golden.h5";
  const Outcome outcome = run_stage(4, {"--weights", golden_shards("tiny-moe", 4), "--input", golden, "--logits", "all",
                                        "--dtype", "fp32", "--reference", golden, "--replicas", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const Array ids = read_array(golden, "input_ids");
  EXPECT_NE(outcome.out.find(fmt::format("VALID      top-1 {0}/{0}", ids.values.size())), std::string::npos)
      << outcome.out;
}

// Every micro-batch of every rank, on one clock, with an arrow for each transfer.
TEST(ProgramTest, TopLogProbsAreTheLogitsOwn) {
  const TemporaryFolder folder;
  const std::string golden = golden_dir() / "tiny-moe" / "golden.h5", shards = golden_shards("tiny-moe", 4);
  ASSERT_EQ(run_stage(2, {"--weights", shards, "--input", golden, "--output", folder / "logits.h5"}).exit_code, 0);
  ASSERT_EQ(
      run_stage(3, {"--weights", shards, "--input", golden, "--output", folder / "top.jsonl", "--top-logprobs", "5"})
          .exit_code,
      0);
  const Array logits = read_array(folder / "logits.h5", "logits");
  const std::string lines = read_text_file(folder / "top.jsonl", 1 << 20);
  size_t start = 0;
  for (int64_t sample = 0; sample < logits.dim(0); ++sample) {
    const size_t end = lines.find('\n', start);
    const Json line = Json::parse(lines.substr(start, end - start));
    start = end + 1;
    const auto row = logits.values.begin() + sample * logits.dim(1);
    double sum = 0;
    for (int64_t i = 0; i < logits.dim(1); ++i) sum += std::exp(row[i]);
    EXPECT_EQ(line.at("id"), sample);
    ASSERT_EQ(line.at("top_ids").size(), 5u);
    EXPECT_EQ(line.at("top_ids")[0], std::max_element(row, row + logits.dim(1)) - row);
    for (size_t k = 0; k < 5; ++k)
      EXPECT_NEAR(line.at("top_logprobs")[k].get<double>(), row[line.at("top_ids")[k].get<int64_t>()] - std::log(sum),
                  1e-5);
  }
  EXPECT_EQ(start, lines.size());
}

TEST(ProgramTest, WrongAnswersAreInvalid) {
  const std::string golden = golden_dir() / "tiny-moe" / "golden.h5";
  const Outcome outcome = run_stage(
      2, {"--weights", golden_shards("tiny-moe", 4), "--input", golden, "--reference", golden, "--tolerance", "1e-9"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.out.find("\nINVALID"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace lfm2::test
