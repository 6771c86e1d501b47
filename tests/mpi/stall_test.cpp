// Ranks that are stopped or killed in the middle of a run: the job ends in time, says why, and leaves nothing behind. A
// pause shorter than the timeout changes nothing.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

constexpr int kStallRanks = 4;
constexpr double kTimeout = 3, kFewSeconds = 4;
constexpr int64_t kSamples = 100000;  // a minute of work, on GPUs too

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::string results_hash(const Outcome& outcome) {
  const size_t at = outcome.out.find("results    ");
  return at == std::string::npos ? "" : outcome.out.substr(at, outcome.out.find('\n', at) - at);
}

// A job that lasts until it is interrupted.
struct StalledJob {
  const char* name;
  std::vector<std::string> options;
  const char* output;
  const char* item;  // the name of a unit of work in the job's messages
};
void PrintTo(const StalledJob& job, std::ostream* stream) { *stream << job.name; }

class StallTest : public testing::TestWithParam<StalledJob> {
 protected:
  std::vector<std::string> command(double timeout, int64_t samples) const {
    std::vector<std::string> arguments{
        "--weights", golden_shards("mini-24", 4), "--timeout", std::to_string(timeout),
        "--samples", std::to_string(samples),     "--output",  folder_ / GetParam().output,
        "--verbose"};
    arguments.insert(arguments.end(), GetParam().options.begin(), GetParam().options.end());
    return stage_command(kStallRanks, arguments);
  }

  // Waits until all ranks are in the middle of the job: the last rank makes its files once it is connected.
  void wait_until_it_runs(const RunningProgram& program) const {
    const auto loaded = [&] {
      std::istringstream lines(program.err());
      int count = 0;
      for (std::string line; std::getline(lines, line);) count += line.find(": loaded ") != std::string::npos ? 1 : 0;
      return count;
    };
    const std::filesystem::path journal = folder_ / (std::string(GetParam().output) + ".journal");
    const auto runs = [&] { return loaded() == kStallRanks && std::filesystem::exists(journal); };
    for (int i = 0; i < 3000 && !runs(); ++i) sleep(0.01);
    ASSERT_TRUE(runs()) << program.err();
    sleep(0.4);
  }

  static std::vector<pid_t> processes(const RunningProgram& program) {
    std::vector<pid_t> all;
    for (int rank = 0; rank < kStallRanks; ++rank) all.push_back(program.process_of(rank));
    return all;
  }

  static void expect_gone(const std::vector<pid_t>& all) {
    const auto gone = [&] { return std::all_of(all.begin(), all.end(), [](pid_t pid) { return kill(pid, 0) != 0; }); };
    const int most = on_gpus() ? 1500 : 200;  // the driver takes time to clean up after a killed process
    for (int i = 0; i < most && !gone(); ++i) sleep(0.01);
    EXPECT_TRUE(gone());
  }

  // Expects no files except those that --resume uses, and removes these.
  void expect_nothing_but_what_resume_takes_up() {
    const std::string output = GetParam().output;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "")) {
      const std::string name = entry.path().filename();
      EXPECT_TRUE(name == output + ".partial" || name == output + ".journal" || name == output + ".journal.1") << name;
      std::filesystem::remove(entry.path());
    }
  }

  static std::vector<std::string> causes(const Outcome& outcome) {
    std::vector<std::string> lines;
    for (const std::string& line : outcome.error_lines())
      if (line.find("no progress") != std::string::npos) lines.push_back(line);
    return lines;
  }

  TemporaryFolder folder_;
};

TEST_P(StallTest, AStoppedRankIsNamed) {
  for (int rank = 0; rank < kStallRanks; ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    RunningProgram program(command(kTimeout, kSamples));
    wait_until_it_runs(program);
    const std::vector<pid_t> all = processes(program);
    const pid_t stopped = all[static_cast<size_t>(rank)];
    ASSERT_GT(stopped, 0);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(kill(stopped, SIGSTOP), 0);
    const Outcome outcome = program.wait();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_EQ(outcome.exit_code, 76) << outcome.err;
    EXPECT_GE(seconds, kTimeout - 0.5);
    EXPECT_LT(seconds, kTimeout + kFewSeconds);
    const std::vector<std::string> lines = causes(outcome);
    ASSERT_EQ(lines.size(), 1u) << outcome.err;
    EXPECT_NE(lines[0].find("(--timeout 3): rank " + std::to_string(rank) + " "), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find("its process " + std::to_string(stopped) + " is stopped"), std::string::npos) << lines[0];
    const std::filesystem::path stamps = folder_ / (std::string(GetParam().output) + ".stall.txt");
    EXPECT_NE(lines[0].find(stamps.string()), std::string::npos) << lines[0];
    const std::string text = read_bytes(stamps);
    for (int other = 0; other < kStallRanks; ++other)
      EXPECT_NE(text.find("rank " + std::to_string(other) + ", process " +
                          std::to_string(all[static_cast<size_t>(other)]) + ": idle for"),
                std::string::npos)
          << text;
    EXPECT_NE(text.find(std::string("computes ") + GetParam().item), std::string::npos) << text;
    expect_gone(all);
    std::filesystem::remove(stamps);
    expect_nothing_but_what_resume_takes_up();
  }
}

TEST_P(StallTest, APauseShorterThanTheTimeoutChangesNothing) {
  constexpr int64_t kFewSamples = 60;
  const Outcome reference = run_program(command(60, kFewSamples));
  ASSERT_EQ(reference.exit_code, 0) << reference.err;
  const std::string file = read_bytes(folder_ / GetParam().output);
  for (const int rank : {1, 3}) {
    RunningProgram program(command(kTimeout, kFewSamples));
    pid_t process = 0;
    for (int i = 0; i < 1000 && process == 0; ++i, sleep(0.002)) process = program.process_of(rank);
    ASSERT_GT(process, 0);
    // Stops the rank wherever it is by then: at the start, while it loads, or while it runs.
    for (int stop = 0; stop < 2; ++stop) {
      sleep(0.2);
      if (kill(process, SIGSTOP) != 0) break;
      sleep(kTimeout / 2);
      kill(process, SIGCONT);
    }
    const Outcome outcome = program.wait();
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(results_hash(outcome), results_hash(reference));
    EXPECT_EQ(read_bytes(folder_ / GetParam().output), file);
  }
}

TEST_P(StallTest, AKilledRankEndsTheJob) {
  for (const int rank : {0, 3}) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    RunningProgram program(command(kTimeout, kSamples));
    wait_until_it_runs(program);
    const std::vector<pid_t> all = processes(program);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_GT(all[static_cast<size_t>(rank)], 0);
    ASSERT_EQ(kill(all[static_cast<size_t>(rank)], SIGKILL), 0);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;  // the launcher's code, which comes first
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10);
    expect_gone(all);
    expect_nothing_but_what_resume_takes_up();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, StallTest,
    testing::Values(
        StalledJob{"Scoring", {"--length", "32", "--micro-batch", "1"}, "out.h5", "micro-batch"},
        StalledJob{"Ring", {"--length", "32", "--micro-batch", "1", "--virtual-stages", "2"}, "out.h5", "micro-batch"},
        StalledJob{"Replicas", {"--length", "32", "--micro-batch", "1", "--replicas", "2"}, "out.h5", "micro-batch"},
        StalledJob{"Generation", {"--length", "9", "--max-tokens", "40", "--ignore-eos"}, "out.jsonl", "step"}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace lfm2::test
