// The ids of an .h5 input in the outputs of whole runs, whatever the ranks, the replicas and stops in between.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/io/journal.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class SampleIdsRunTest : public testing::Test {
 protected:
  // Samples of four tokens, of which every third has no id.
  void write_input(int64_t samples, const std::string& prefix) {
    ids_.clear();
    std::vector<int64_t> tokens, offsets{0};
    for (int64_t i = 0; i < samples; ++i) {
      ids_.push_back(i % 3 == 2 ? "" : prefix + std::to_string(i));
      for (int64_t j = 0; j < 4; ++j) tokens.push_back((i * 7 + j) % 50);
      offsets.push_back(std::ssize(tokens));
    }
    h5::File file = h5::File::create(folder_ / "in.h5");
    file.write_i64("input_ids", tokens);
    file.write_i64("offsets", offsets);
    file.write_texts("ids", samples, [&](int64_t i) { return ids_[static_cast<size_t>(i)]; });
    file.close();
  }
  std::vector<std::string> job(const std::string& output, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{
        "--weights", golden_shards("tiny-moe", 4), "--input", folder_ / "in.h5", "--output", folder_ / output};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // The output's bytes.
  std::string run(int ranks, const std::string& output, const std::vector<std::string>& more) const {
    std::filesystem::remove(folder_ / output);
    const Outcome outcome = run_stage(ranks, job(output, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_bytes(folder_ / output);
  }
  void expect_ids(const std::string& output) const {
    const CheckedFile file(folder_ / output);
    ASSERT_TRUE(h5::scan(file, {.only = {"ids"}}).datasets.contains("ids")) << output;
    EXPECT_EQ(h5::File::open(file).read_texts("ids", 0, ids_.size()), ids_) << output;
  }
  void expect_ids_of_lines(const std::string& text) const {
    std::istringstream lines(text);
    std::string line;
    for (size_t i = 0; i < ids_.size(); ++i) {
      ASSERT_TRUE(std::getline(lines, line));
      EXPECT_EQ(Json::parse(line)["id"], ids_[i].empty() ? Json(i) : Json(ids_[i]));
    }
    EXPECT_FALSE(std::getline(lines, line));
  }

  TemporaryFolder folder_;
  std::vector<std::string> ids_;
};

TEST_F(SampleIdsRunTest, AreTheSameForAnyRanksAndReplicas) {
  write_input(37, "é-");
  const std::vector<std::string> hidden{"--hidden", "mean"}, score{"--score"}, plain{};
  for (const std::vector<std::string>& kind : {plain, hidden, score}) {
    std::vector<std::string> replicas = kind;
    replicas.insert(replicas.end(), {"--replicas", "2"});
    const std::string one = run(1, "o.h5", kind);
    expect_ids("o.h5");
    EXPECT_TRUE(run(2, "o.h5", kind) == one);
    EXPECT_TRUE(run(2, "o.h5", replicas) == one);
    EXPECT_TRUE(run(4, "o.h5", replicas) == one);
    expect_ids_of_lines(run(2, "o.jsonl", kind));
  }
  const std::vector<std::string> continued{"--max-tokens", "5"}, replicas{"--max-tokens", "5", "--replicas", "2"};
  for (const char* output : {"c.h5", "c.jsonl"}) {
    const std::string one = run(1, output, continued);
    EXPECT_TRUE(run(2, output, continued) == one);
    EXPECT_TRUE(run(4, output, replicas) == one);
  }
  expect_ids("c.h5");
  expect_ids_of_lines(read_bytes(folder_ / "c.jsonl"));
  ids_.resize(5);
  run(2, "o.h5", {"--samples", "5"});
  expect_ids("o.h5");
}

TEST_F(SampleIdsRunTest, AStoppedRunEndsWithTheSameFile) {
  for (const auto& [output, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"o.h5", {"--micro-batch", "1", "--resume"}}, {"c.h5", {"--max-tokens", "30", "--resume"}}}) {
    const int64_t samples = output == "o.h5" ? 20000 : 1000;
    write_input(samples, "a");
    const std::string whole = run(2, output, more);
    std::filesystem::remove(folder_ / output);
    std::filesystem::remove(folder_ / (output + ".finished"));
    {
      RunningProgram program(stage_command(2, job(output, more)));
      for (int i = 0; i < 20000 && !any_finished(folder_ / output); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      program.signal(SIGUSR1);
      ASSERT_EQ(program.wait().exit_code, 75);
    }
    write_input(samples, "b");
    const Outcome other = run_stage(2, job(output, more));
    EXPECT_EQ(other.exit_code, 65) << other.err;
    EXPECT_NE(other.err.find("other input"), std::string::npos) << other.err;
    write_input(samples, "a");
    EXPECT_TRUE(run(2, output, more) == whole);
    expect_ids(output);
  }
}

}  // namespace
}  // namespace lfm2::test
