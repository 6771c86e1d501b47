// doctor as users see it: a table, measured links, findings by name, and the right exit code.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "stage/planning/machine_costs.h"
#include "stage/shards/shard_reader.h"
#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Words = std::vector<std::string>;

Words mpirun(int ranks) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  return {LFM2_MPIEXEC, "--oversubscribe", "--bind-to", "none", "-np", std::to_string(ranks)};
}

Words doctor(const Words& options) {
  Words words{LFM2_STAGE_PROGRAM, "doctor"};
  for (const Words& more : {machine_options(), options}) words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

int count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  int lines = 0;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines += std::regex_search(line, regex) ? 1 : 0;
  return lines;
}

void expect_stops(const Outcome& outcome, const std::string& reason) {
  EXPECT_EQ(outcome.exit_code, 69) << outcome.out << outcome.err;
  EXPECT_EQ(count(outcome.out, "STOPS  .*" + reason), 1) << outcome.out;
  ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
  EXPECT_NE(outcome.error_lines()[0].find("would stop a run"), std::string::npos);
}

const Words kWeights = {"--weights", golden_shards("tiny-moe", 4)};

TEST(DoctorTest, FourRanksArePlannedAndTheirLinksMeasured) {
  const Outcome outcome = run_program(mpirun(4) + doctor(kWeights));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.error_lines().size(), 0u) << outcome.err;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(count(outcome.out, fmt::format("^ +{}  +{}-{}  +[0-9.]+ [kM]B  ", rank, 2 * rank, 2 * rank + 1)), 1)
        << outcome.out;
  EXPECT_EQ(count(outcome.out, "^ +[0-2] to [1-3] .*  +[0-9]*[1-9][0-9]*\\.?[0-9]*"), 3) << outcome.out;
  EXPECT_EQ(count(outcome.out, "STOPS"), 0) << outcome.out;
  EXPECT_EQ(count(outcome.out, "lfm2_stage .*HDF5 [0-9].*MPI"), 1) << outcome.out;
}

TEST(DoctorTest, AloneAndWithoutALauncher) {
  const Outcome outcome = run_program(doctor({}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(count(outcome.out, " to "), 0) << outcome.out;
}

TEST(DoctorTest, ReplicasHaveLinksOfTheirOwn) {
  const Outcome outcome = run_program(mpirun(4) + doctor(kWeights + Words{"--replicas", "2"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(count(outcome.out, "^ +(0 to 1|2 to 3) "), 2) << outcome.out;
  EXPECT_EQ(count(outcome.out, "1 to 2"), 0) << outcome.out;
}

TEST(DoctorTest, WhatWouldStopARun) {
  expect_stops(run_program(mpirun(4) + doctor({"--weights", "/nowhere"})), "ranks 0-3: /nowhere: no such folder");
  expect_stops(run_program(mpirun(3) + doctor(kWeights + Words{"--replicas", "2"})), "3 ranks for --replicas 2");
  expect_stops(run_program(mpirun(9) + doctor(kWeights)), "9 ranks for the 8 layers");
  expect_stops(run_program(mpirun(2) + doctor(kWeights + Words{"--layers", "3,3,2"})), "--layers names 3 stages");
  expect_stops(run_program(mpirun(3) + doctor(kWeights + Words{"--virtual-stages", "3"})), "9 pieces for 8 layers");
  expect_stops(run_program(Words{"env", "SLURM_STEP_NUM_TASKS=4"} + doctor({})), "each would run alone");
}

TEST(DoctorTest, ThePlaceOfAnOutput) {
  const TemporaryFolder folder;
  const Words output{"--output", folder / "o.h5"};
  const Outcome outcome = run_program(mpirun(4) + doctor(kWeights + output + Words{"--replicas", "2"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(count(outcome.out, "/o.h5 by rank 1 on .*: .* free, .*, largest file no limit, locks"), 1) << outcome.out;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  expect_stops(run_program(mpirun(2) + doctor({"--output", folder / "no/o.h5"})),
               "rank 1: .*/no/o.h5: cannot be created: open failed: No such file or directory");
  write_bytes(folder / "o.h5.partial", "of somebody else");
  expect_stops(run_program(doctor(output)), "rank 0: .*o.h5.partial");
  std::filesystem::remove(folder / "o.h5.partial");
  const Outcome limited = run_program(Words{"prlimit", "--fsize=1000000000"} + doctor(output));
  EXPECT_EQ(limited.exit_code, 0) << limited.out << limited.err;
  EXPECT_EQ(count(limited.out, "slow +.*/o.h5 on .*: a file may have at most 1.00 GB"), 1) << limited.out;
}

TEST(DoctorTest, SavesWhatTheModelCosts) {
  const TemporaryFolder folder;
  const Words save{"--save", folder / "m.json", "--length", "16"};
  const Outcome outcome = run_program(mpirun(2) + doctor(kWeights + save));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(count(outcome.out, "saved what the model costs"), 1) << outcome.out;
  const ShardSet shards = ShardSet::open(golden_shards("tiny-moe", 4));
  const MachineCosts costs = read_machine_costs(folder / "m.json", shards.config());
  std::vector<int64_t> lengths;
  for (const SampleCosts& one : costs.hosts.front().samples) lengths.push_back(one.length);
  EXPECT_EQ(lengths.front(), 16);
  EXPECT_EQ(std::ssize(costs.hosts), costs.cuda ? 1 : 2);
  ASSERT_EQ(costs.links.size(), 1u);
  for (HostCosts host : costs.hosts)
    for_each_curve(host, [](const CostCurve& curve) {
      for (const double seconds : curve.seconds) EXPECT_GT(seconds, 0);
    });
  // plan predicts with it.
  const auto plan = [&](const std::string& model, const Words& options) {
    return run_program(Words{LFM2_WEIGHTS_TOOLS_PROGRAM, "plan", model, "--machine", folder / "m.json", "--ranks"} +
                       options);
  };
  const std::string model = kWeights.back();
  const Outcome scoring = plan(model, {"2", "--samples", "64", "--length", "16", "--micro-batch", "4"});
  EXPECT_EQ(scoring.exit_code, 0) << scoring.out << scoring.err;
  EXPECT_EQ(count(scoring.out, "^ *as given +2 +1 +2 +1 +4 +16 +[0-9.e-]+ "), 1) << scoring.out;
  EXPECT_EQ(count(scoring.out, "^ +best +2 "), 1) << scoring.out;
  const Outcome generation = plan(model, {"1,2,512", "--samples", "8", "--max-tokens", "4", "--json"});
  EXPECT_EQ(generation.exit_code, 0) << generation.err;
  EXPECT_EQ(count(generation.out, "\"new_tokens_per_second\": [1-9]"), 1 + 2 + 4) << generation.out;
  // Another model, another type, ranks that no layout has.
  EXPECT_EQ(plan("lfm2-350m", {"2"}).exit_code, 65);
  EXPECT_EQ(plan("lfm2-350m", {"2"}).error_lines().size(), 1u);
  EXPECT_EQ(plan(model, {"2", "--dtype", "fp16"}).exit_code, 65);
  EXPECT_EQ(plan(model, {"3", "--replicas", "2"}).exit_code, 64);
  EXPECT_EQ(run_program({LFM2_WEIGHTS_TOOLS_PROGRAM, "plan", model, "--ranks", "2"}).exit_code, 64);
  // Nothing is left of a file that cannot be written.
  const Outcome refused = run_program(mpirun(2) + doctor(kWeights + Words{"--save", folder / "none/m.json"}));
  EXPECT_EQ(refused.exit_code, 73) << refused.out << refused.err;
  EXPECT_EQ(refused.error_lines().size(), 1u) << refused.err;
  EXPECT_EQ(run_program(doctor({"--save", folder / "m.json"})).exit_code, 64);
}

TEST(DoctorTest, OtherShardsOnOtherRanks) {
  const Outcome outcome = run_program(mpirun(1) + doctor(kWeights) + Words{":", "-np", "1"} +
                                      doctor({"--weights", golden_shards("tiny-moe", 1)}));
  expect_stops(outcome, "other shards from host to host");
}

TEST(DoctorTest, RankThatNeverComesEndsIt) {
  const Outcome outcome = run_program(mpirun(1) + Words{LFM2_STAGE_PROGRAM, "doctor", "--device", "cpu", "--timeout"} +
                                      Words{"0.5", ":", "-np", "1", "sleep", "60"});
  EXPECT_EQ(outcome.exit_code, 76) << outcome.out << outcome.err;
  ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
  EXPECT_NE(outcome.error_lines()[0].find("a rank is stopped or missing"), std::string::npos);
  EXPECT_LT(outcome.seconds, 10);
}

TEST(DoctorTest, WrongUsageIsOneLine) {
  const Outcome outcome = run_program(mpirun(2) + doctor({"--balance"}));
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
}

}  // namespace
}  // namespace lfm2::test
