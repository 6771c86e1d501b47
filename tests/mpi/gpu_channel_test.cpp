// The channels over NCCL and over peer copies, on the fake CUDA: transfers, and how a job ends whose NCCL or copies are
// slow, fail or hang.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/program.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

constexpr double kChannelSeconds = 5;

class GpuChannelTest : public testing::Test {
 protected:
  explicit GpuChannelTest(const char* transport) : transport_(transport) {}
  Outcome run(const char* faults, int ranks = 3, int items = 50, const char* mode = "") const {
    setenv("FAKE_CUDA", faults, 1);
    std::vector<std::string> command = mpi_command(ranks, LFM2_CHANNEL_RANKS_PROGRAM);
    command.insert(command.end(), {transport_, std::to_string(items), "2", folder_ / "stamps.txt"});
    if (*mode != '\0') command.emplace_back(mode);
    Outcome outcome = run_program(command);
    unsetenv("FAKE_CUDA");
    return outcome;
  }
  // The job ended with 76 in time, and its one line contains `reason`.
  static void expect_lost_line(const Outcome& outcome, const std::string& reason) {
    EXPECT_EQ(outcome.exit_code, 76) << outcome.err;
    EXPECT_LT(outcome.seconds, 2 + kChannelSeconds);
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
  }
  void expect_lost(const char* faults, const std::vector<std::string>& reasons, bool aborts) const {
    SCOPED_TRACE(faults);
    const Outcome outcome = run(faults);
    for (const std::string& reason : reasons) expect_lost_line(outcome, reason);
    EXPECT_EQ(outcome.err.find("fake NCCL: ncclCommAbort") != std::string::npos, aborts) << outcome.err;
  }
  void expect_hands_on() const {
    for (const int ranks : {2, 3, 4}) {
      const Outcome outcome = run("", ranks, 200);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, "200 units through " + std::to_string(ranks) + " ranks\n");
      const Outcome round = run("", ranks, 200, "ring");
      EXPECT_EQ(round.exit_code, 0) << round.err;
      EXPECT_EQ(round.out, outcome.out);
    }
  }

 private:
  const std::string transport_;
  TemporaryFolder folder_;
};

class NcclChannelTest : public GpuChannelTest {
 protected:
  NcclChannelTest() : GpuChannelTest("nccl") {}
};
class PeerChannelTest : public GpuChannelTest {
 protected:
  PeerChannelTest() : GpuChannelTest("peer") {}
  // The same line, whoever speaks first.
  void expect_refused(const char* faults, const char* reason) const {
    SCOPED_TRACE(faults);
    const Outcome outcome = run(faults);
    EXPECT_EQ(outcome.exit_code, 69) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
  }
};

TEST_F(NcclChannelTest, HandsOn) { expect_hands_on(); }
TEST_F(PeerChannelTest, HandsOn) { expect_hands_on(); }

TEST_F(NcclChannelTest, ASlowStartIsNoFailure) {
  const Outcome outcome = run("1:init-delay:1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_GE(outcome.seconds, 1);
}

TEST_F(NcclChannelTest, AStartThatNeverEnds) {
  expect_lost("1:init-never", {"no progress for", "to connect"}, true);
  expect_lost("0:init-never,1:init-never,2:init-never,0:abort-never,1:abort-never,2:abort-never",
              {"no progress for", "to connect"}, true);
}

TEST_F(NcclChannelTest, AStartThatFails) {
  expect_lost("2:init-error", {"rank 2", "NCCL from rank 1 failed: unhandled system error: injected"}, true);
  expect_lost("2:init-error,2:abort-never", {"rank 2", "NCCL from rank 1 failed"}, true);
}

TEST_F(NcclChannelTest, AnErrorInTheMiddle) {
  expect_lost("1:async-error:20", {"rank 1", "failed: remote process exited"}, false);
  expect_lost("0:transfer-error:20", {"rank 0", "ncclSend", "failed: internal error"}, false);
}

// Whichever side hangs, the other one waits for it, and the line names both.
TEST_F(NcclChannelTest, ATransferThatNeverEnds) {
  for (const char* fault : {"1:transfer-never:20", "0:transfer-never:20"})
    expect_lost(fault, {"no progress for", "rank 0 waits until rank 1 takes", "from rank 0"}, false);
}

TEST_F(PeerChannelTest, ACopyThatNeverEnds) {
  for (const char* fault : {"1:copy-never:20", "0:copy-never:20"})
    expect_lost(fault, {"no progress for", "rank 0 waits until rank 1 takes", "from rank 0"}, false);
}

// It waits a second for its neighbour, and does not free the flag that this one writes: the memory for the first
// transfers is all that it frees.
TEST_F(PeerChannelTest, ARankThatLeavesKeepsWhatItsNeighbourReaches) {
  const Outcome outcome = run("", 2, 1, "leave");
  expect_lost_line(outcome, "): left");
  EXPECT_GE(outcome.seconds, 1);
  EXPECT_NE(outcome.out.find("\n1 buffers of the device freed\n"), std::string::npos) << outcome.out;
}

// What is under way is waited for, until the watchdog ends the job.
TEST_F(PeerChannelTest, ARankThatLeavesInTheMiddle) {
  for (const char* mode : {"leave-send", "leave-receive"}) expect_lost_line(run("", 2, 1, mode), "no progress for");
}

TEST_F(PeerChannelTest, GpusThatAreNoPeers) {
  expect_refused("2:no-peer", "rank 2: cudaIpcOpenMemHandle failed: an error of the fake CUDA");
  expect_refused("1:writes-lost", "rank 0: what the next GPU writes into this one's memory does not arrive");
}

TEST_F(PeerChannelTest, FewerQueuesThanStreams) {
  for (const char* queues : {"1", "3", "many"}) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues, 1);
    expect_refused("",
                   (std::string("rank 0: CUDA_DEVICE_MAX_CONNECTIONS is ") + queues + ", expected at least 4").c_str());
  }
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
  EXPECT_EQ(run("", 2, 1).exit_code, 0);
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

}  // namespace
}  // namespace lfm2::test
