// Jobs with weights in fp8: what reports say of them and of what fp8 costs, the memory that plan, doctor and a run
// name, and the perplexity of the trained model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/bytes_text.h"
#include "base/json/json.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Arguments = std::vector<std::string>;

struct Fp8Case {
  std::string name, scheme, modules;
};
const std::vector<Fp8Case> kCases{
    {"tiny-fp8-channel", "channel", "experts"}, {"tiny-fp8-block", "block", "all"}, {"tiny-fp8-hf", "block", "all"}};

class Fp8JobTest : public testing::Test {
 protected:
  // The report of a job that succeeds.
  Json report_of(int ranks, Arguments arguments) {
    arguments.insert(arguments.end(), {"--report", folder_ / "report.json"});
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    out_ = outcome.out;
    return outcome.exit_code == 0 ? parse_json(read_bytes(folder_ / "report.json"), "report") : Json();
  }

  TemporaryFolder folder_;
  std::string out_;  // what the last job printed
};

// Of each row: the divergence, and whether the largest logits are at one place.
struct Comparison {
  double mean_kl = 0;
  int64_t top1_equal = 0;
};
Comparison compare(const Array& reference, const Array& found) {
  Comparison result;
  const int64_t columns = reference.dims.back(), rows = std::ssize(reference.values) / columns;
  for (int64_t row = 0; row < rows; ++row) {
    const auto p = reference.values.begin() + row * columns, q = found.values.begin() + row * columns;
    double p_sum = 0, q_sum = 0, kl = 0;
    for (int64_t i = 0; i < columns; ++i) p_sum += std::exp(p[i]), q_sum += std::exp(q[i]);
    for (int64_t i = 0; i < columns; ++i)
      kl += std::exp(p[i]) / p_sum * (p[i] - std::log(p_sum) - q[i] + std::log(q_sum));
    result.mean_kl += kl / static_cast<double>(rows);
    result.top1_equal += std::max_element(p, p + columns) - p == std::max_element(q, q + columns) - q ? 1 : 0;
  }
  return result;
}

TEST_F(Fp8JobTest, ReportsNameTheWeightsAndWhatTheyCost) {
  for (const Fp8Case& one : kCases)
    for (const std::string dtype : {"fp8", "bf16"}) {
      SCOPED_TRACE(one.name + ", " + dtype);
      const std::string golden = golden_dir() / one.name / "golden.h5";
      const Json report = report_of(
          2, {"--weights", golden_shards(one.name, 2), "--input", golden, "--dtype", dtype == "fp8" ? "auto" : dtype,
              "--logits", "all", "--reference", golden, "--tolerance", "100", "--output", folder_ / "out.h5"});
      ASSERT_FALSE(report.is_null());
      EXPECT_EQ(report["dtype"], dtype);
      EXPECT_EQ(report["fp8"], (Json{{"scheme", one.scheme}, {"modules", one.modules}}));
      const std::string weights = fmt::format("({}, {})", one.scheme, one.modules);
      EXPECT_NE(out_.find((dtype == "fp8" ? ", fp8 " : ", bf16 of fp8 ") + weights + " on "), std::string::npos)
          << out_;
      const Array reference = read_array(golden, "logits");
      const Comparison found = compare(reference, read_array(folder_ / "out.h5", "logits"));
      EXPECT_NEAR(report["validation"]["mean_kl_divergence"].get<double>() / found.mean_kl, 1, 1e-5);
      EXPECT_EQ(report["validation"]["top1_equal"], found.top1_equal);
      EXPECT_NE(out_.find(fmt::format("VALID      top-1 {}/{}, ", found.top1_equal,
                                      std::ssize(reference.values) / reference.dims.back())),
                std::string::npos)
          << out_;
      EXPECT_NE(out_.find(fmt::format("mean KL divergence {:.3g}\n",
                                      report["validation"]["mean_kl_divergence"].get<double>())),
                std::string::npos)
          << out_;
      // Little more than quantising the activations costs in fp64.
      const Comparison quantised = compare(reference, read_array(golden, "logits_quant_f64"));
      EXPECT_LT(found.mean_kl, 2 * quantised.mean_kl);
    }
}

TEST_F(Fp8JobTest, PlanDoctorAndRunsCountTheSameWeights) {
  for (const Fp8Case& one : kCases)
    for (const std::string dtype : {"fp8", "bf16"}) {
      SCOPED_TRACE(one.name + ", " + dtype);
      const std::string shards = golden_shards(one.name, 2);
      const Arguments wanted = dtype == "fp8" ? Arguments{} : Arguments{"--dtype", dtype};
      Arguments planning{LFM2_WEIGHTS_TOOLS_PROGRAM, "plan", shards, "--stages", "2", "--json"},
          job{"--weights", shards, "--samples", "4"}, doctor = mpi_command(2, LFM2_STAGE_PROGRAM);
      const Arguments machine = machine_options();
      doctor.insert(doctor.end(), {"doctor", "--weights", shards});
      doctor.insert(doctor.end(), machine.begin(), machine.end());
      for (Arguments* arguments : {&planning, &job, &doctor})
        arguments->insert(arguments->end(), wanted.begin(), wanted.end());
      const Outcome planned = run_program(planning), examined = run_program(doctor);
      ASSERT_EQ(planned.exit_code, 0) << planned.err;
      ASSERT_EQ(examined.exit_code, 0) << examined.out << examined.err;
      const Json plan = parse_json(planned.out, "plan"), report = report_of(2, job);
      EXPECT_NE(examined.out.find(
                    fmt::format("in {} ({}, {}),", dtype == "fp8" ? "fp8" : "bf16 of fp8", one.scheme, one.modules)),
                std::string::npos)
          << examined.out;
      for (size_t stage = 0; stage < 2; ++stage) {
        const uint64_t bytes = report["stages"][stage]["weight_bytes"];
        EXPECT_EQ(plan["stages"][stage]["weight_bytes"], bytes);
        EXPECT_NE(examined.out.find("  " + bytes_text(bytes) + "  "), std::string::npos) << examined.out;
      }
    }
}

// All held-out texts, as a smaller part has more noise than the bound.
TEST_F(Fp8JobTest, PerplexityOfTheTrainedModelHardlyRises) {
  const auto perplexity_of = [&](const std::string& golden_case) {
    const Json report = report_of(1, {"--weights", golden_shards(golden_case, 1), "--input",
                                      golden_dir() / "kjv-moe" / "held-out.jsonl", "--score"});
    EXPECT_EQ(report["dtype"], golden_case == "kjv-moe" ? "bf16" : "fp8");
    return report["scores"]["perplexity"]["token"]["value"].get<double>();
  };
  const double bf16 = perplexity_of("kjv-moe");
  EXPECT_NEAR(bf16, 12.07, 0.01);  // golden/README.md
  for (const std::string& golden_case : kQuantizedCases) {
    const double fp8 = perplexity_of(golden_case);
    EXPECT_LT(fp8 / bf16, 1.003) << golden_case;  // scales of other rows or blocks cost more
    EXPECT_NE(fp8, bf16) << golden_case;
    RecordProperty(test_name(golden_case), fmt::format("{:.6f}", fp8 / bf16));
  }
}

}  // namespace
}  // namespace lfm2::test
