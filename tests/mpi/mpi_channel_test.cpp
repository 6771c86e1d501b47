// MPI on memory that is not the host's, with a library that takes it (MpiChannel) and with one that does not
// (StagedChannel); and how a job ends whose library claims to take it and then fails (tests/support/claims_cuda.c).
#include <gtest/gtest.h>

#include "support/program.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

class MpiChannelTest : public testing::Test {
 protected:
  static constexpr double kLimit = 2, kEnding = 5;  // seconds: --timeout, and what all ranks may take to end

  // `fault`: see claims_cuda.c.
  Outcome run(bool claims, const std::string& fault = "", int ranks = 3, int items = 50,
              const std::string& mode = "") const {
    std::vector<std::string> command = mpi_command(ranks, "env");
    if (claims) command.insert(command.end(), {"LD_PRELOAD=" LFM2_CLAIMS_CUDA_LIBRARY, "CLAIMS_CUDA=" + fault});
    command.insert(command.end(), {LFM2_CHANNEL_RANKS_PROGRAM, "mpi", std::to_string(items), std::to_string(kLimit),
                                   folder_ / "stamps.txt"});
    if (!mode.empty()) command.push_back(mode);
    return run_program(command);
  }
  // The job ends in time with the code and one line, which contains all `reasons`.
  void expect_end(const std::string& fault, int code, const std::vector<std::string>& reasons) const {
    SCOPED_TRACE(fault);
    const Outcome outcome = run(true, fault);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    EXPECT_LT(outcome.seconds, kLimit + kEnding);
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    for (const std::string& reason : reasons)
      EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
  }
  TemporaryFolder folder_;
};

// Two ranks print, and a launcher passes on their lines in any order.
TEST_F(MpiChannelTest, HandsOnOverDeviceBuffersAndStaged) {
  for (const int ranks : {2, 4}) {
    const std::string end = "200 units through " + std::to_string(ranks) + " ranks\n";
    for (const char* mode : {"", "ring"}) {
      const Outcome direct = run(true, "", ranks, 200, mode);
      EXPECT_EQ(direct.exit_code, 0) << direct.err;
      EXPECT_TRUE(direct.out == "device buffers\n" + end || direct.out == end + "device buffers\n") << direct.out;
      const Outcome staged = run(false, "", ranks, 200, mode);
      EXPECT_EQ(staged.exit_code, 0) << staged.err;
      EXPECT_EQ(staged.out.find("device buffers"), std::string::npos) << staged.out;
      EXPECT_NE(staged.out.find("staged: "), std::string::npos) << staged.out;
      EXPECT_NE(staged.out.find(end), std::string::npos) << staged.out;
    }
  }
}

TEST_F(MpiChannelTest, StagesWhereMpiTakesDeviceBuffersOnSomeRanksOnly) {
  for (const char* claims : {"only:0", "only:1"}) {
    const Outcome outcome = run(true, claims);
    EXPECT_EQ(outcome.exit_code, 0) << claims << ": " << outcome.err;
    EXPECT_NE(outcome.out.find("50 units through 3 ranks\n"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("staged: "), std::string::npos) << outcome.out;
  }
}

// An error may destroy a channel in the middle of a transfer. What MPI still reads or writes is not freed.
TEST_F(MpiChannelTest, AStagedChannelLeavesToMpiWhatItStillHas) {
  for (const char* mode : {"leave-send", "leave-receive"}) {
    const Outcome outcome = run(false, "", 2, 0, mode);
    EXPECT_EQ(outcome.exit_code, 76) << outcome.err;
    EXPECT_NE(outcome.out.find("0 of 4 pieces freed\n"), std::string::npos) << mode << ": " << outcome.out;
  }
}

TEST_F(MpiChannelTest, AFirstDeviceBufferThatMpiRefuses) {
  expect_end("0:send-error:1", 76, {"rank 0", "MPI_Isend", "failed: MPI_ERR_OTHER"});
  expect_end("1:receive-error:1", 76, {"rank 1", "MPI_Irecv", "failed: MPI_ERR_OTHER"});
}

TEST_F(MpiChannelTest, ADeviceBufferThatKillsTheRank) {
  for (const char* fault : {"0:send-crash:1", "1:receive-crash:1", "0:send-abort:1", "2:receive-abort:1",
                            "0:send-crash:20", "1:receive-crash:33", "2:receive-abort:20"})
    expect_end(fault, 70, {std::string("rank ") + fault[0], "killed inside MPI", "claims to"});
}

TEST_F(MpiChannelTest, AFirstDeviceBufferThatNeverArrives) {
  expect_end("0:send-never:1", 76, {"no progress for", "rank 0"});
  expect_end("1:receive-never:1", 76, {"no progress for", "rank 1"});
}

}  // namespace
}  // namespace lfm2::test
