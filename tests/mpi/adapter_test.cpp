// Shards with merged adapters under mpirun: the logits and texts that PEFT's merged model gives.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json/json.h"
#include "support/golden.h"
#include "support/largest_difference.h"
#include "support/program.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class AdapterRunTest : public testing::TestWithParam<std::string> {};

TEST_P(AdapterRunTest, GivesTheLogitsOfTheMergedModel) {
  const std::filesystem::path golden = golden_dir() / GetParam() / "golden.h5";
  const Array expected = read_array(golden, "logits_f64"), reference = read_array(golden, "logits");
  const TemporaryFolder folder;
  for (const int ranks : {1, 4}) {
    const Outcome outcome =
        run_stage(ranks, {"--weights", golden_shards(GetParam(), 4 / ranks), "--input", golden, "--logits", "all",
                          "--dtype", "fp32", "--output", folder / "out.h5", "--report", folder / "report.json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_LE(largest_difference(read_array(folder / "out.h5", "logits").values, expected.values),
              3 * largest_difference(reference.values, expected.values));
    EXPECT_NE(outcome.out.find("\nadapters   " + GetParam() + "\n"), std::string::npos) << outcome.out;
    const Json report = parse_json(read_bytes(folder / "report.json"), "report");
    ASSERT_EQ(report["adapters"].size(), 1u);
    EXPECT_EQ(report["adapters"][0]["name"], GetParam());
  }
}

TEST_P(AdapterRunTest, GivesTheTextsOfTheMergedModel) {
  const std::filesystem::path golden = golden_dir() / GetParam() / "golden.h5";
  const Array expected = read_array(golden, "greedy_ids");
  const TemporaryFolder folder;
  const Outcome outcome = run_stage(
      4, {"--weights", golden_shards(GetParam(), 4), "--input", golden, "--max-tokens", std::to_string(expected.dim(1)),
          "--ignore-eos", "--dtype", "fp32", "--generation-config", "none", "--output", folder / "out.jsonl"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<double> found;
  for (const Json& line : json_lines(read_bytes(folder / "out.jsonl")))
    for (const Json& token : line["token_ids"]) found.push_back(token.get<double>());
  EXPECT_EQ(found, expected.values);
}

INSTANTIATE_TEST_SUITE_P(Cases, AdapterRunTest, testing::Values("adapter-dense", "adapter-moe"),
                         [](const auto& tested) { return test_name(tested.param); });

}  // namespace
}  // namespace lfm2::test
