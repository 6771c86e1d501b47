// The results of every golden case on the CPU are, bit for bit, those that tests/golden/bits.json names for this kBits.
// Where they differ, a change has given jobs other bits: kBits must be raised (src/stage/version.h.in), so that
// --resume does not mix the two, and the table must be made anew:
//   LFM2_NEW_BITS=tests/golden/bits.json build/cpu/bin/mpi_tests --gtest_filter='BitsTest.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/checked_file.h"
#include "base/json/json.h"
#include "stage/version.h"
#include "support/golden.h"
#include "support/program.h"

namespace lfm2::test {
namespace {

// The results hash of one rank, without a launcher. Empty where the processor lacks the instructions.
std::string results_of(const std::vector<std::string>& arguments) {
  const TemporaryFolder folder;
  std::vector<std::string> command{LFM2_STAGE_PROGRAM, "--device", "cpu", "-q", "--report", folder / "report.json"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const Outcome outcome = run_program(command);
  if (outcome.exit_code == 69 && outcome.err.find("this processor cannot run") != std::string::npos) return {};
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(read_text_file(folder / "report.json", 1 << 20)).at("results_xxh3");
}

TEST(BitsTest, AreThoseOfTheTable) {
  const std::filesystem::path table = golden_dir() / "bits.json";
  const char* make = std::getenv("LFM2_NEW_BITS");
  const Json expected = make != nullptr ? Json{{"bits", kBits}} : Json::parse(read_text_file(table, 1 << 20));
  ASSERT_EQ(expected.at("bits").get<int>(), kBits) << table << " is of other bits: make it anew (see above)";
  OrderedJson found{{"bits", kBits}, {"results", OrderedJson::object()}};
  size_t compared = 0;
  std::vector<std::string> cases = with_fp8_bits(kGoldenCases);
  cases.emplace_back("tiny-fp8-block");
  for (const std::string& golden_case : cases)
    for (const std::string& dtype : golden_dtypes(golden_case))
      for (const char* simd : {"portable", "avx2"})
        for (const char* job : {"scoring", "scores", "greedy", "drawn", "fp8 cache"}) {
          if ((job == std::string("scores") || job == std::string("drawn")) && dtype != "fp32" && dtype != "fp8")
            continue;  // saves time: each start takes a third of a second
          if (job == std::string("greedy") && dtype != "bf16" && dtype != "fp8") continue;
          if (job == std::string("fp8 cache") && (dtype != "fp32" || golden_case == "kjv-moe")) continue;
          const std::string name = fmt::format("{} {} {} {}", golden_case, dtype, simd, job);
          std::vector<std::string> arguments{"--weights", golden_shards(golden_case, 1),
                                             "--input",   golden_dir() / golden_source(golden_case) / "golden.h5",
                                             "--dtype",   dtype,
                                             "--simd",    simd};
          if (std::string(job) == "scoring")
            arguments.insert(arguments.end(), {"--logits", "all"});
          else if (std::string(job) == "scores")
            arguments.emplace_back("--score");
          else
            arguments.insert(arguments.end(), {"--max-tokens", "12", "--ignore-eos"});
          if (std::string(job) == "fp8 cache") arguments.insert(arguments.end(), {"--cache-dtype", "fp8"});
          if (std::string(job) == "drawn") arguments.insert(arguments.end(), {"--temperature", "1.2", "--top-k", "30"});
          const std::string results = results_of(arguments);
          if (results.empty()) continue;
          found["results"][name] = results;
          if (make != nullptr) continue;
          EXPECT_EQ(results, expected.at("results").at(name).get<std::string>())
              << name << ": other bits, and kBits is still " << kBits;
          ++compared;
        }
  if (make != nullptr)
    std::ofstream(make) << found.dump(1) << "\n";
  else
    EXPECT_GE(compared, 20u);
}

// Several ranks, each with several pieces of layers, have the bits of the table, too.
TEST(BitsTest, AreThoseOfTheTableInRings) {
  if (on_gpus()) GTEST_SKIP() << "the table is the CPU's";
  const Json expected = Json::parse(read_text_file(golden_dir() / "bits.json", 1 << 20));
  const TemporaryFolder folder;
  struct Ring {
    int ranks;
    const char *pieces, *micro_batch;
  };
  const std::vector<std::string> cases{"tiny-moe", "mini-24", "mini-24.block-all"};
  for (const std::string& golden_case : cases)
    for (const std::string& dtype : golden_dtypes(golden_case))
      for (const Ring& ring : {Ring{2, "2", "1"}, {2, "4", "2"}, {4, "2", "1"}, {3, "2", "1"}})
        for (const bool score : {false, true}) {
          if (dtype == "fp16" || (score && dtype == "bf16")) continue;  // not in the table
          std::vector<std::string> arguments{"--weights",
                                             golden_shards(golden_case, 4),
                                             "--input",
                                             golden_dir() / golden_source(golden_case) / "golden.h5",
                                             "--dtype",
                                             dtype,
                                             "--simd",
                                             "portable",
                                             "--virtual-stages",
                                             ring.pieces,
                                             "--micro-batch",
                                             ring.micro_batch,
                                             "-q",
                                             "--report",
                                             folder / "report.json"};
          if (score) arguments.emplace_back("--score");
          if (!score) arguments.insert(arguments.end(), {"--logits", "all"});
          const Outcome outcome = run_stage(ring.ranks, arguments);
          ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
          const std::string name = fmt::format("{} {} portable {}", golden_case, dtype, score ? "scores" : "scoring");
          const Json report = Json::parse(read_text_file(folder / "report.json", 1 << 20));
          EXPECT_EQ(report.at("results_xxh3").get<std::string>(), expected.at("results").at(name).get<std::string>())
              << name << ", " << ring.ranks << " ranks of " << ring.pieces << " pieces";
          EXPECT_EQ(report.at("virtual_stages"), std::stoi(ring.pieces));
          EXPECT_EQ(report.at("stages")[0].at("pieces").size(), std::stoul(ring.pieces));
        }
}

// On any machine (LFM2_TEST_MACHINE) a ring has the bits of the same ranks with one piece each: with all rows and with
// pruned tokens, with samples in small micro-batches and, where the size is chosen, in others than those.
TEST(BitsTest, RingsHaveTheBitsOfOneRound) {
  const TemporaryFolder folder;
  struct Kind {
    const char* dtype;
    std::vector<std::string> results;
  };
  const std::vector<Kind> kinds{{"fp32", {"--logits", "all"}}, {"bf16", {"--logits", "all"}}, {"bf16", {}},
                                {"fp16", {"--score"}},         {"fp8", {"--logits", "all"}},  {"fp8", {}}};
  for (const int ranks : {2, 4})
    for (const Kind& kind : kinds) {
      const auto results_of = [&](const char* pieces, const char* micro_batch, const char* layers = nullptr) {
        std::vector<std::string> arguments{
            "--weights",
            golden_shards(kind.dtype == std::string("fp8") ? "mini-24.block-all" : "mini-24", 4),
            "--input",
            golden_dir() / "mini-24" / "golden.h5",
            "--dtype",
            kind.dtype,
            "--virtual-stages",
            pieces,
            "-q",
            "--report",
            folder / "report.json"};
        arguments.insert(arguments.end(), kind.results.begin(), kind.results.end());
        if (micro_batch != nullptr) arguments.insert(arguments.end(), {"--micro-batch", micro_batch});
        if (layers != nullptr) arguments.insert(arguments.end(), {"--layers", layers});
        const Outcome outcome = run_stage(ranks, arguments);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        if (outcome.exit_code != 0) return std::string(pieces) + " pieces failed";
        const Json report = Json::parse(read_text_file(folder / "report.json", 1 << 20));
        EXPECT_EQ(report.at("virtual_stages"), std::stoi(pieces));
        return report.at("results_xxh3").get<std::string>();
      };
      const std::string one_round = results_of("1", "1");
      for (const char* pieces : {"2", "3"})
        for (const char* micro_batch : {"1", static_cast<const char*>(nullptr)})
          EXPECT_EQ(results_of(pieces, micro_batch), one_round)
              << ranks << " ranks of " << pieces << " pieces, " << kind.dtype << ", "
              << (kind.results.empty() ? "last rows" : kind.results[0]);
      // Cut between the blocks of layers, too.
      EXPECT_EQ(results_of("1", nullptr, ranks == 2 ? "11.5,12.5" : "5.5,6,5,7.5"), one_round) << kind.dtype;
      EXPECT_EQ(results_of("2", "1", ranks == 2 ? "5.5,6,6,6.5" : "2.5,3,3,3,3.5,3,3,3"), one_round) << kind.dtype;
    }
}

}  // namespace
}  // namespace lfm2::test
