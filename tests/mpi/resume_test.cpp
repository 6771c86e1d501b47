// Runs that are stopped, killed or refused, and then resumed: the file at the end equals, byte for byte, that of a run
// without interruption.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "stage/io/journal.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class ResumeTest : public testing::Test {
 protected:
  // A job of a second or so, for interruptions to hit.
  std::vector<std::string> job(const std::string& output, std::vector<std::string> more) const {
    more.insert(more.begin(), {"--weights", weights_, "--output", folder_ / output});
    return more;
  }
  static std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // Interrupts and resumes until the job is done; the last run is not interrupted.
  void expect_same_after(const std::vector<std::string>& arguments, const std::string& output, int ranks,
                         const std::vector<int>& signals, int interruptions, unsigned seed) {
    std::filesystem::remove(folder_ / output);
    const Outcome whole = run_stage(ranks, arguments);
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    const std::string expected = read_bytes(folder_ / output);
    std::filesystem::remove(folder_ / output);
    std::mt19937 random(seed);
    int stops = 0;
    for (int i = 0; i <= interruptions && !std::filesystem::exists(folder_ / output); ++i) {
      Interruption interruption;
      if (i < interruptions) {
        interruption.signal = signals[random() % signals.size()];
        interruption.after_seconds = whole.seconds * (0.3 + 0.7 * static_cast<double>(random() % 1000) / 1000);
        interruption.child = interruption.signal == SIGKILL ? static_cast<int>(random() % 8) : -1;
      }
      const Outcome outcome = run_stage(ranks, with(arguments, {"--resume"}), interruption);
      if (outcome.exit_code == 75) ++stops;
      // A code of 128 and more means that the signal came before main().
      const bool right = interruption.signal == 0 ? outcome.exit_code == 0
                         : interruption.signal == SIGUSR1
                             ? outcome.exit_code == 75 || outcome.exit_code == 0 || outcome.exit_code >= 128
                             : true;
      EXPECT_TRUE(right) << outcome.exit_code << outcome.err;
      // A stopped run says how to resume. The reverse holds only where the launcher leaves the exit code to the ranks.
      EXPECT_TRUE(outcome.exit_code != 75 || outcome.err.find("; resume with --resume") != std::string::npos)
          << outcome.err;
    }
    EXPECT_TRUE(read_bytes(folder_ / output) == expected) << output;
    for (const char* ending : {".partial", ".journal", ".new"}) {
      EXPECT_FALSE(std::filesystem::exists((folder_ / output).string() + ending)) << ending;
    }
    RecordProperty("stops", stops);
  }

  TemporaryFolder folder_;
  std::filesystem::path weights_ = golden_shards("tiny-moe", 4);
};

TEST_F(ResumeTest, ScoringStoppedAndKilled) {
  unsigned seed = 1;
  for (const char* output : {"o.bin", "o.h5", "o.jsonl"})
    expect_same_after(job(output, {"--samples", "3000", "--micro-batch", "16"}), output, 3, {SIGUSR1, SIGKILL}, 4,
                      ++seed);
  expect_same_after(
      job("all.h5", {"--samples", "1500", "--logits", "all", "--top-logprobs", "2", "--micro-batch", "7"}), "all.h5", 2,
      {SIGUSR1, SIGKILL, SIGTERM}, 4, 9);
}

TEST_F(ResumeTest, ReplicasShareWhatIsLeft) {
  for (const char* output : {"o.bin", "o.h5", "o.jsonl"})
    expect_same_after(job(output, {"--samples", "3000", "--micro-batch", "16", "--replicas", "2"}), output, 4,
                      {SIGUSR1, SIGKILL}, 4, 5);
}

TEST_F(ResumeTest, GenerationStoppedAndKilled) {
  for (const char* output : {"o.jsonl", "o.h5"})
    expect_same_after(job(output, {"--samples", "200", "--length", "5", "--max-tokens", "40", "--temperature", "1.2",
                                   "--max-num-seqs", "12", "--top-logprobs", "2"}),
                      output, 2, {SIGUSR1, SIGKILL}, 4, 3);
}

TEST_F(ResumeTest, Fp8StoppedAndKilled) {
  weights_ = golden_shards("tiny-fp8-channel", 2);
  expect_same_after(job("o.h5", {"--samples", "3000", "--micro-batch", "16", "--replicas", "2"}), "o.h5", 4,
                    {SIGUSR1, SIGKILL}, 3, 7);
  expect_same_after(job("o.jsonl", {"--samples", "200", "--length", "5", "--max-tokens", "40", "--temperature", "1.2",
                                    "--max-num-seqs", "12", "--top-logprobs", "2"}),
                    "o.jsonl", 2, {SIGUSR1, SIGKILL}, 3, 8);
}

// One rank writes what all pipelines finish.
TEST_F(ResumeTest, GenerationOfReplicas) {
  for (const char* output : {"o.jsonl", "o.h5"})
    expect_same_after(job(output, {"--samples", "400", "--length", "5", "--max-tokens", "40", "--temperature", "1.2",
                                   "--max-num-seqs", "12", "--top-logprobs", "2", "--replicas", "2"}),
                      output, 4, {SIGUSR1, SIGKILL}, 4, 6);
}

// A rank of one replica is asked to stop, so all stop. A run with other replicas continues what they began.
TEST_F(ResumeTest, WithOtherReplicas) {
  for (const std::string output : {"o.h5", "o.jsonl"}) {
    const std::vector<std::string> all = job(output, {"--samples", "2000", "--micro-batch", "4", "--score"});
    ASSERT_EQ(run_stage(1, all).exit_code, 0);
    const std::string expected = read_bytes(folder_ / output);
    std::filesystem::remove(folder_ / output);
    RunningProgram program(stage_command(4, with(all, {"--replicas", "2"})));
    for (int i = 0; i < 20000 && !any_finished(folder_ / output); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(program.process_of(3), SIGUSR1);
    const Outcome stopped = program.wait();
    EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
    const Outcome outcome = run_stage(3, with(all, {"--replicas", "3", "--resume"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(read_bytes(folder_ / output) == expected) << output;
  }
}

// A signal reaches rank 0 when it has no micro-batch left, and another replica still has some.
TEST_F(ResumeTest, WhileAnotherReplicaIsLate) {
  const std::vector<std::string> all = job("o.h5", {"--samples", "400", "--micro-batch", "4", "--replicas", "2"});
  RunningProgram program(stage_command(2, all));
  for (int i = 0; i < 20000 && !any_finished(folder_ / "o.h5"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const pid_t late = program.process_of(1);
  kill(late, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  kill(program.process_of(0), SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  kill(late, SIGCONT);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err;
}

class BegunTest : public ResumeTest {
 protected:
  BegunTest() {
    RunningProgram program(stage_command(2, options_));
    for (int i = 0; i < 20000 && !any_finished(folder_ / "o.bin"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.signal(SIGUSR1);
    EXPECT_EQ(program.wait().exit_code, 75);
    before_ = read_bytes(folder_ / "o.bin.journal");
  }
  void expect_refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& reasons) {
    const Outcome outcome = run_stage(2, arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    for (const std::string& reason : reasons)
      EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
    EXPECT_EQ(read_bytes(folder_ / "o.bin.journal"), before_);
  }
  // Long enough on GPUs, too.
  std::vector<std::string> options_ = job("o.bin", {"--samples", "60000", "--micro-batch", "1"});
  std::string before_;
};

TEST_F(BegunTest, AnotherJobIsRefused) {
  ASSERT_FALSE(before_.empty()) << "no run could be stopped";
  std::ofstream(folder_ / "o.bin.finished") << "notes";
  expect_refused(with(options_, {"--resume"}), 73, {"o.bin.finished: is no mark of a finished output"});
  EXPECT_EQ(read_bytes(folder_ / "o.bin.finished"), "notes");
  std::filesystem::remove(folder_ / "o.bin.finished");
  expect_refused(options_, 73, {"o.bin.journal", "of 60000 samples", "expected --resume"});
  const std::vector<std::string> resume = with(options_, {"--resume"});
  expect_refused(with(resume, {"--seed", "4"}), 65, {"o.bin.journal", "other input", "60000 samples"});
  expect_refused(with(resume, {"--dtype", "bf16"}), 64, {"other options", "--dtype", "\"bf16\"", "\"fp32\""});
  expect_refused(with(resume, {"--cache-dtype", "fp8"}), 64, {"other options", "--cache-dtype", "\"fp8\""});
  if (!on_gpus())
    expect_refused(with(resume, {"--simd", "portable"}), 64,
                   {"other options: --device", " continues it on a processor that has these instructions"});
  std::vector<std::string> model = resume;
  model[1] = golden_shards("tiny-moe", 1);
  expect_refused(model, 65, {"other weights"});
}

// A run with --resume marks what it finishes; the same job then ends without weights.
TEST_F(ResumeTest, WhatIsFinishedIsNotComputedAgain) {
  for (const auto& [output, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"o.bin", {"--samples", "20", "--resume"}},
           {"scores.jsonl", {"--samples", "20", "--score", "--resume"}},
           {"texts.h5", {"--samples", "4", "--length", "3", "--max-tokens", "5", "--replicas", "2", "--resume"}}}) {
    const std::vector<std::string> options = job(output, more);
    const Outcome first = run_stage(2, options);
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const auto time = std::filesystem::last_write_time(folder_ / output);
    const Outcome second = run_stage(4, options);
    EXPECT_EQ(second.exit_code, 0) << second.err;
    EXPECT_NE(second.out.find("samples were finished before, "), std::string::npos) << output << second.out;
    EXPECT_EQ(std::filesystem::last_write_time(folder_ / output), time) << output;
    const size_t perplexity = first.out.find("perplexity ");
    EXPECT_EQ(perplexity != std::string::npos, output == "scores.jsonl");
    if (perplexity != std::string::npos) {
      const std::string line = first.out.substr(perplexity, first.out.find('\n', perplexity) - perplexity);
      EXPECT_NE(second.out.find(line), std::string::npos) << second.out;
    }
    // Another job, or a file that somebody changed, is computed.
    const Outcome other = run_stage(2, with(options, {"--seed", "4"}));
    EXPECT_EQ(other.exit_code, 0) << other.err;
    EXPECT_NE(other.err.find("the output is of another job (input "), std::string::npos) << other.err;
    EXPECT_EQ(run_stage(2, options).out.find("finished before"), std::string::npos) << output;
    std::ofstream(folder_ / output, std::ios::app) << "x";
    EXPECT_EQ(run_stage(2, options).out.find("finished before"), std::string::npos) << output;
  }
  std::ofstream(folder_ / "o.bin.finished") << "{}";
  const Outcome foreign = run_stage(2, job("o.bin", {"--samples", "20", "--resume"}));
  EXPECT_EQ(foreign.exit_code, 73) << foreign.err;
  EXPECT_EQ(read_bytes(folder_ / "o.bin.finished"), "{}");
  EXPECT_EQ(run_stage(2, job("plain.bin", {"--samples", "20"})).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "plain.bin.finished"));
}

TEST_F(ResumeTest, WithNothingToResumeItStarts) {
  const std::vector<std::string> options = job("o.bin", {"--samples", "20", "--resume"});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run_stage(2, options).exit_code, 0);
  EXPECT_EQ(run_stage(2, {"--weights", golden_shards("tiny-moe", 4), "--resume"}).exit_code, 64);
  EXPECT_EQ(run_stage(2, with(options, {"--benchmark"})).exit_code, 64);
}

}  // namespace
}  // namespace lfm2::test
