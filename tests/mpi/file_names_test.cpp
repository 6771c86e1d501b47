// Names of files as the file system allows them: any bytes, which need not be UTF-8.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/golden.h"
#include "support/program.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

using Words = std::vector<std::string>;

class FileNamesTest : public testing::Test {
 protected:
  FileNamesTest() {
    std::filesystem::create_directory(folder());
    std::filesystem::copy(golden_shards("tiny-moe", 4), folder() / "shards");
  }

  std::filesystem::path folder() const { return folder_ / "caf\xe9"; }
  std::string file(const std::string& name) const { return folder() / ("\xff" + name); }

  void expect_made(int ranks, const Words& options, const Words& files) const {
    Words arguments{"--weights", folder() / "shards", "-q"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.error_lines(), Words{});
    for (const std::string& made : files) EXPECT_GT(std::filesystem::file_size(made), 0u) << made;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(FileNamesTest, NeedNotBeUtf8) {
  std::ofstream(file("in.jsonl")) << "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5]}\n";
  expect_made(
      2,
      {"--input", file("in.jsonl"), "--output", file("o.bin"), "--report", file("r.json"), "--trace", file("t.json")},
      {file("o.bin"), file("r.json"), file("t.json")});
  expect_made(2, {"--input", file("in.jsonl"), "--reference", file("o.bin"), "--output", file("o.h5")}, {file("o.h5")});
  expect_made(2, {"--input", file("in.jsonl"), "--output", file("o.jsonl"), "--resume"}, {file("o.jsonl")});
  expect_made(2, {"--input", file("in.jsonl"), "--max-tokens", "2", "--output", file("g.jsonl")}, {file("g.jsonl")});
}

TEST_F(FileNamesTest, NeedNotBeUtf8WithReplicas) {
  for (const char* name : {"o.bin", "o.h5"})
    expect_made(2, {"--samples", "8", "--replicas", "2", "--output", file(name)}, {file(name)});
}

TEST_F(FileNamesTest, NeedNotBeUtf8WhereTheyAreMissing) {
  const Outcome missing = run_stage(2, {"--weights", folder() / "shards", "--input", file("absent.jsonl")});
  EXPECT_EQ(missing.exit_code, 66) << missing.err;
  ASSERT_EQ(missing.error_lines().size(), 1u) << missing.err;
  EXPECT_NE(missing.error_lines()[0].find("absent.jsonl: open failed"), std::string::npos) << missing.err;

  Words doctor = mpi_command(2, LFM2_STAGE_PROGRAM);
  doctor.insert(doctor.end(), {"doctor", "--device", "cpu", "--weights", folder() / "absent"});
  const Outcome sick = run_program(doctor);
  EXPECT_EQ(sick.exit_code, 69) << sick.err;
  EXPECT_NE(sick.out.find("absent: no such folder"), std::string::npos) << sick.out;
}

}  // namespace
}  // namespace lfm2::test
