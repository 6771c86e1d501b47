// The command line: what runs, what is refused, and the report's JSON.
#include "stage/options.h"

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "stage/json.h"
#include "stage/report.h"

namespace lfm2 {
namespace {

ParsedCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "lfm2_stage");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST(OptionsTest, DefaultsAreTheBuiltInJob) {
  const ParsedCommandLine parsed = parse({"--weights", "shards"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.options.samples, 1024);
  EXPECT_EQ(parsed.options.length, 32);
  EXPECT_FALSE(parsed.options.dtype);
  EXPECT_EQ(parsed.options.results.positions, Positions::kLast);
}

TEST(OptionsTest, EverythingAtOnce) {
  const ParsedCommandLine parsed = parse(
      {"--weights", "s",           "--input",   "i.bin",         "--samples",   "7",        "--output", "o.h5",
       "--logits",  "all",         "--answers", "a.h5",          "--tolerance", "0.5",      "--fp16",   "--device",
       "cpu",       "--transport", "mpi",       "--micro-batch", "3",           "--layers", "7,6,6,5",  "--threads",
       "2",         "--timeout",   "9",         "--benchmark",   "--warmup",    "0",        "--repeat", "3",
       "--report",  "r.json",      "-q"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  const Options& options = parsed.options;
  EXPECT_EQ(options.samples, 7);
  EXPECT_EQ(options.dtype, DType::kF16);
  EXPECT_EQ(options.results.positions, Positions::kAll);
  EXPECT_EQ(options.device, DeviceChoice::kCpu);
  EXPECT_EQ(options.transport, TransportChoice::kMpi);
  EXPECT_EQ(options.layer_counts, (std::vector<int64_t>{7, 6, 6, 5}));
  EXPECT_EQ(options.timeout_seconds, 9);
  EXPECT_EQ(options.warmup, 0);
  EXPECT_TRUE(options.quiet);
}

TEST(OptionsTest, MistakesAreOneLineAndCode64) {
  const std::vector<std::vector<const char*>> mistakes = {
      {},
      {"--weights"},
      {"--weights", "s", "--no-such-option"},
      {"--weights", "s", "stray"},
      {"--weights", "s", "--dtype", "fp8"},
      {"--weights", "s", "--device", "tpu"},
      {"--weights", "s", "--logits", "some"},
      {"--weights", "s", "--samples", "0"},
      {"--weights", "s", "--samples", "many"},
      {"--weights", "s", "--length", "-3"},
      {"--weights", "s", "--micro-batch", "-1"},
      {"--weights", "s", "--tolerance", "-1"},
      {"--weights", "s", "--repeat", "3"},
      {"--weights", "s", "--output", "o.txt"},
      {"--weights", "s", "--output", "o.bin", "--logits", "all"},
      {"--weights", "s", "--output", "o.h5", "--logits", "none"},
      {"--weights", "s", "--logits", "none", "--top-logprobs", "3"},
      {"--weights", "s", "--top-logprobs", "0"},
      {"--weights", "s", "--answers", "a.bin", "--top-logprobs", "3"},
      {"--weights", "s", "--device", "cpu", "--transport", "nccl"},
      {"--weights", "s", "--quiet", "--verbose"}};
  for (const auto& mistake : mistakes) {
    const ParsedCommandLine parsed = parse(mistake);
    SCOPED_TRACE(parsed.text);
    EXPECT_FALSE(parsed.run);
    EXPECT_EQ(parsed.exit_code, 64);
    EXPECT_EQ(parsed.text.find('\n'), parsed.text.size() - 1);
    EXPECT_EQ(parsed.text.find("lfm2_stage: "), 0u);
  }
}

TEST(OptionsTest, HelpAndVersionGoToStdout) {
  const ParsedCommandLine help = parse({"--help"}), version = parse({"--version"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_FALSE(help.run);
  EXPECT_NE(help.text.find("--top-logprobs"), std::string::npos);
  EXPECT_NE(help.text.find("WHICH:{last,all,none}=last"), std::string::npos) << help.text;
  for (const char each : help.text) EXPECT_TRUE(each == '\n' || (each >= ' ' && each <= '~'));
  EXPECT_EQ(version.text.find("lfm2_stage "), 0u);
}

TEST(ReportTest, StageReportSurvivesItsJson) {
  const StageReport report{.stage = 2,
                           .layers = {12, 6},
                           .host = "a\"b",
                           .device = "CPU",
                           .load_seconds = 1.5,
                           .weight_bytes = 1ull << 40,
                           .activation_bytes = 7,
                           .peak_host_bytes = 9,
                           .times = {.total = 4, .busy = 3, .sending = 2, .hidden = 1, .receiving = 0.5},
                           .results_xxh3 = std::string(32, 'a'),
                           .verdict = Verdict{.rows = 3, .top1_equal = 2, .largest_difference = 0.25, .tolerance = 1},
                           .generation = GenerationReport{.tokens = 5, .first_token_median = 0.5}};
  const StageReport back = stage_report_from_json(to_json(report));
  EXPECT_EQ(to_json(back), to_json(report));
  EXPECT_EQ(back.layers, report.layers);
  EXPECT_EQ(back.times.receiving, 0.5);
}

TEST(ReportTest, ReplicasAreAddedUp) {
  std::vector<StageReport> stages(4);
  EXPECT_EQ(merged_results_xxh3(stages), "");
  EXPECT_FALSE(merged_verdict(stages));
  stages[1].results_xxh3 = "00000000000000020000000000000001";
  stages[3].results_xxh3 = "0000000000000003ffffffffffffffff";  // carries
  EXPECT_EQ(merged_results_xxh3(stages), "00000000000000060000000000000000");
  stages[1].verdict = Verdict{.rows = 1, .top1_equal = 1, .largest_difference = 0.5, .mean_kl = 4, .tolerance = 1};
  stages[3].verdict = Verdict{.rows = 3, .top1_equal = 2, .largest_difference = 0.25, .mean_kl = 0, .tolerance = 1};
  EXPECT_EQ(merged_verdict(stages)->rows, 4);
  EXPECT_EQ(merged_verdict(stages)->top1_equal, 3);
  EXPECT_EQ(merged_verdict(stages)->largest_difference, 0.5);
  EXPECT_EQ(merged_verdict(stages)->mean_kl, 1);
  EXPECT_TRUE(merged_verdict(stages)->valid());
  stages[1].verdict->largest_difference = std::nan("");
  EXPECT_FALSE(merged_verdict(stages)->valid());
  EXPECT_FALSE(stage_report_from_json(to_json(stages[1])).verdict->valid());
}

TEST(ReportTest, FiguresOfTheJob) {
  JobReport job{.model_type = "lfm2",
                .dtype = "fp32",
                .transport = "MPI",
                .version = "v",
                .layers = 4,
                .samples = 10,
                .tokens = 100,
                .micro_batches = 5,
                .largest_micro_batch = 2,
                .results = {},
                .generation = GenerationReport{.tokens = 50, .first_token_median = 0.25, .next_token_p95 = 0.125},
                .seconds = {4, 1, 2},
                .stages = {},
                .results_xxh3 = "ab",
                .verdict = Verdict{.rows = 10, .top1_equal = 9, .largest_difference = 2, .tolerance = 1}};
  for (const int64_t stage : {0, 1}) {
    job.stages.emplace_back();
    job.stages.back().stage = stage;
    job.stages.back().layers = {2 * stage, 2};
    job.stages.back().times = {.total = 2, .busy = static_cast<double>(stage + 1)};
  }
  EXPECT_EQ(job.median_seconds(), 2);
  EXPECT_EQ(job.lost_share(), 0.25);
  EXPECT_DOUBLE_EQ(job.ideal_lost_share(), 1.0 / 6);
  const Json json = Json::parse(to_json(job));
  EXPECT_EQ(json.at("samples_per_second"), 5.0);
  EXPECT_EQ(json.at("validation").at("valid"), false);
  EXPECT_EQ(json.at("stages").size(), 2u);
  EXPECT_NE(end_table(job).find("INVALID    top-1 9/10"), std::string::npos);
}

}  // namespace
}  // namespace lfm2
