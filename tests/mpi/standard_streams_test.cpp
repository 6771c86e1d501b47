// Standard streams that cannot be written, or that whoever started the program had closed.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/golden.h"
#include "support/program.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

class StandardStreamsTest : public testing::Test {
 protected:
  // One rank of lfm2_stage, without a launcher between it and the streams.
  Outcome run(const std::string& arguments) const {
    std::string command = std::string("exec ") + LFM2_STAGE_PROGRAM;
    for (const std::string& option : machine_options()) command += " " + option;
    return run_program({"bash", "-c", command + " " + arguments});
  }
  std::string job() const { return "--weights " + golden_shards("kjv-moe", 1).string() + " "; }

  TemporaryFolder folder_;
};

TEST_F(StandardStreamsTest, ResultsThatCannotBeWrittenAreAnError) {
  for (const std::string& arguments :
       {job() + "--prompt In --max-tokens 3", job() + "--samples 3", std::string("--help")})
    for (const char* closed : {" >/dev/full", " >&-"}) {
      const Outcome outcome = run(arguments + closed);
      EXPECT_EQ(outcome.exit_code, 74) << arguments << closed << outcome.err;
      EXPECT_NE(outcome.err.find("stdout cannot be written: "), std::string::npos) << outcome.err;
    }
}

TEST_F(StandardStreamsTest, MessagesThatCannotBeWrittenChangeNothing) {
  for (const char* closed : {" 2>/dev/full", " 2>&-"}) {
    EXPECT_EQ(run("--weights /nowhere --samples 3" + std::string(closed)).exit_code, 66);
    const std::filesystem::path output = folder_ / "o.bin";
    EXPECT_EQ(run(job() + "--samples 3 --verbose --output " + output.string() + closed).exit_code, 0);
    EXPECT_GT(std::filesystem::file_size(output), 0u);
    std::filesystem::remove(output);
  }
}

TEST_F(StandardStreamsTest, AnInputThatIsClosedIsAnError) {
  const Outcome outcome = run(job() + "--input - <&-");
  EXPECT_EQ(outcome.exit_code, 74) << outcome.err;
  EXPECT_NE(outcome.err.find("standard input: read failed"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace lfm2::test
