// The command line: what runs, what is refused, and the report's JSON.
#include "stage/job/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

#include "kernels/error.h"
#include "stage/job/report.h"
#include "stage/support/json.h"

namespace lfm2 {
namespace {

ParsedCommandLine parse_words(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "lfm2_stage");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST(OptionsTest, DefaultsAreTheBuiltInJob) {
  const ParsedCommandLine parsed = parse_words({"--weights", "shards"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.options.samples, 1024);
  EXPECT_EQ(parsed.options.length, 32);
  EXPECT_FALSE(parsed.options.dtype);
  EXPECT_EQ(parsed.options.results.positions, Positions::kLast);
}

TEST(OptionsTest, AServerKeepsPrefixesUnlessToldOtherwise) {
  const ParsedCommandLine kept = parse_words({"serve", "--weights", "s"}),
                          computed = parse_words({"serve", "--weights", "s", "--no-prefix-cache"});
  ASSERT_TRUE(kept.run && computed.run) << kept.text << computed.text;
  EXPECT_TRUE(kept.options.serve->prefix_cache);
  EXPECT_FALSE(computed.options.serve->prefix_cache);
  EXPECT_FALSE(parse_words({"--weights", "s", "--no-prefix-cache"}).run);
}

TEST(OptionsTest, EverythingAtOnce) {
  const ParsedCommandLine parsed = parse_words(
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

TEST(OptionsTest, HiddenStatesAreAKindOfResult) {
  for (const auto& [name, kind] : {std::pair{"last", Hidden::kLast}, {"mean", Hidden::kMean}, {"all", Hidden::kAll}}) {
    const ParsedCommandLine parsed = parse_words(
        {"--weights", "s", "--hidden", name, "--after-layer", "3", "--input", "i.jsonl", "--output", "o.h5"});
    ASSERT_TRUE(parsed.run) << parsed.text;
    const ResultKind& results = parsed.options.results;
    EXPECT_EQ(results.hidden, kind);
    EXPECT_EQ(results.after_layer, 3);
    EXPECT_EQ(results.positions, kind == Hidden::kAll ? Positions::kAll : Positions::kLast);
    EXPECT_EQ(results.of_last_positions(), kind == Hidden::kLast);
    EXPECT_EQ(positions_name(results), name);
    EXPECT_EQ(states_name(results), "after layer 3");
    EXPECT_EQ(continues_samples(parsed.options), false);
  }
}

TEST(OptionsTest, ScoringIsAKindOfResult) {
  const ParsedCommandLine parsed =
      parse_words({"--weights", "s", "--score", "--stride", "8", "--input", "i.jsonl", "--output", "o.jsonl"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_TRUE(parsed.options.results.score);
  EXPECT_EQ(parsed.options.results.positions, Positions::kAll);
  EXPECT_EQ(parsed.options.stride, 8);
  EXPECT_EQ(continues_samples(parsed.options), false);
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
      {"--weights", "s", "--score", "--logits", "last"},
      {"--weights", "s", "--score", "--top-logprobs", "2"},
      {"--weights", "s", "--score", "--generate", "2"},
      {"--weights", "s", "--score", "--prompt", "a"},
      {"--weights", "s", "--score", "--output", "o.bin"},
      {"--weights", "s", "--score", "--answers", "a.bin"},
      {"--weights", "s", "--score", "--stride", "0"},
      {"--weights", "s", "--stride", "8"},
      {"--weights", "s", "--hidden", "first"},
      {"--weights", "s", "--hidden", "last", "--score"},
      {"--weights", "s", "--hidden", "last", "--logits", "last"},
      {"--weights", "s", "--hidden", "last", "--top-logprobs", "2"},
      {"--weights", "s", "--hidden", "last", "--generate", "2"},
      {"--weights", "s", "--hidden", "last", "--prompt", "a"},
      {"--weights", "s", "--hidden", "last", "--temperature", "1"},
      {"--weights", "s", "--hidden", "last", "--answers", "a.h5"},
      {"--weights", "s", "--hidden", "last", "--output", "o.bin"},
      {"--weights", "s", "--hidden", "last", "--replicas", "2", "--output", "o.jsonl"},
      {"--weights", "s", "--hidden", "last", "--after-layer", "0"},
      {"--weights", "s", "--after-layer", "1"},
      {"--weights", "s", "--quiet", "--verbose"}};
  for (const auto& mistake : mistakes) {
    const ParsedCommandLine parsed = parse_words(mistake);
    SCOPED_TRACE(parsed.text);
    EXPECT_FALSE(parsed.run);
    EXPECT_EQ(parsed.exit_code, 64);
    EXPECT_EQ(parsed.text.find('\n'), parsed.text.size() - 1);
    EXPECT_EQ(parsed.text.find("lfm2_stage: "), 0u);
  }
}

// What stands in --help: a new option that takes a number is tested without being named here.
std::vector<std::string> options_with_values() {
  std::vector<std::string> names;
  std::istringstream help(parse_words({"--help"}).text);
  for (std::string line; std::getline(help, line);) {
    const size_t name = line.find("--"), end = line.find(' ', name);
    if (name != 2 || end == std::string::npos || line[end + 1] < 'A' || line[end + 1] > 'Z') continue;
    if (line.compare(end + 1, 6, "Needs:") != 0 && line.compare(end + 1, 9, "Excludes:") != 0)
      names.push_back(line.substr(name, end - name));
  }
  return names;
}

ParsedCommandLine parse_value(const std::string& option, const std::string& value) {
  std::vector<const char*> arguments{"--weights", "s", option.c_str(), value.c_str(), "--benchmark"};
  if (option != "--generate" && option != "--answers" && option != "--logits" && option != "--virtual-stages")
    arguments.insert(arguments.end(), {"--generate", "1"});
  return parse_words(arguments);
}

// Takes a number and nothing else.
bool is_number(const std::string& option) { return parse_value(option, "1").run && !parse_value(option, "x").run; }

TEST(OptionsTest, NumbersAreDecimalAndInRange) {
  std::set<std::string> integers, fractions;
  for (const std::string& option : options_with_values()) {
    if (!is_number(option)) continue;
    SCOPED_TRACE(option);
    (parse_value(option, "0.5").run ? fractions : integers).insert(option);
    std::vector<std::string> refused{"",   " 1",   "1 ",  "+1",   "0x1", "0b1", "1x",   "1;1",      "1 1",  "1,",
                                     ",1", "1,,1", "nan", "-nan", "NaN", "inf", "-inf", "infinity", "1e400"};
    if (option != "--presence-penalty" && option != "--frequency-penalty") refused.push_back("-1");
    if (integers.contains(option)) {
      refused.insert(refused.end(), {"1e0", "1.0", "18446744073709551616", "18446744073709551617",
                                     "-18446744073709551615", "99999999999999999999"});
      EXPECT_TRUE(parse_value(option, "08").run) << parse_value(option, "08").text;
    }
    for (const std::string& value : refused) {
      const ParsedCommandLine parsed = parse_value(option, value);
      EXPECT_EQ(parsed.exit_code, 64) << '"' << value << '"';
      EXPECT_EQ(parsed.text.find("lfm2_stage: " + option + ": \"" + value + "\", expected "), 0u) << parsed.text;
      EXPECT_EQ(std::count(parsed.text.begin(), parsed.text.end(), '\n'), 1) << parsed.text;
    }
  }
  EXPECT_EQ(fractions,
            (std::set<std::string>{"--frequency-penalty", "--min-p", "--presence-penalty", "--repetition-penalty",
                                   "--temperature", "--timeout", "--tolerance", "--top-p"}));
  for (const char* known :
       {"--samples", "--seed", "--eos", "--layers", "--replicas", "--threads", "--repeat", "--virtual-stages"})
    EXPECT_TRUE(integers.contains(known)) << known;
}

TEST(OptionsTest, StopTexts) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(
      parse_words({"--weights", "s", "--generate", "1", "--stop", "[a,b]", "--stop", "é"}).options.generation.stop,
      (Texts{"[a,b]", "é"}));
  for (const char* text : {"", "\xff", "a\xc3"})
    EXPECT_EQ(parse_words({"--weights", "s", "--generate", "1", "--stop", text}).text,
              "lfm2_stage: --stop: no text in UTF-8, expected one of at least a character\n");
  EXPECT_EQ(parse_words({"--weights", "s", "--stop", "a"}).exit_code, 64);  // of a job that scores
  EXPECT_EQ(parse_words({"--weights", "s", "--generate", "1", "--stop", "a", "--replicas", "2"}).exit_code, 64);
}

TEST(OptionsTest, VirtualStagesAreForScoring) {
  EXPECT_EQ(parse_words({"--weights", "s"}).options.virtual_stages, 1);
  EXPECT_EQ(parse_words({"--weights", "s", "--virtual-stages", "3", "--score"}).options.virtual_stages, 3);
  const std::string refusal =
      "lfm2_stage: --virtual-stages 2 in a job that continues texts: a step waits for the one before it, expected a "
      "job "
      "that scores\n";
  using Words = std::vector<const char*>;
  for (const Words& job : {Words{"--weights", "s", "--generate", "4"},
                           {"--weights", "s", "--prompt", "a"},
                           {"chat", "--weights", "s"},
                           {"serve", "--weights", "s"}}) {
    Words words = job;
    words.insert(words.end(), {"--virtual-stages", "2"});
    EXPECT_EQ(parse_words(words).text, refusal);
    EXPECT_EQ(parse_words(words).exit_code, 64);
  }
  EXPECT_EQ(parse_words({"--weights", "s", "--virtual-stages", "0", "--layers", "2,2"}).text,
            "lfm2_stage: --layers with --virtual-stages 0: the cut is given, expected the number of pieces for each "
            "rank\n");
  for (const char* command : {"chat", "serve"})
    EXPECT_EQ(parse_words({command, "--help"}).text.find("--virtual-stages"), std::string::npos);
}

TEST(OptionsTest, NumbersMeanWhatTheySay) {
  const ParsedCommandLine parsed = parse_words({"--weights", "s", "--samples", "010", "--length", "0032", "--seed",
                                                "18446744073709551615", "--layers", "010,07,08", "--generate", "0100",
                                                "--eos", "011", "12,-0", "--timeout", "1e-2", "--top-p", ".5"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.options.samples, 10);
  EXPECT_EQ(parsed.options.length, 32);
  EXPECT_EQ(parsed.options.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parsed.options.layer_counts, (std::vector<int64_t>{10, 7, 8}));
  EXPECT_EQ(parsed.options.generation.max_new, 100);
  EXPECT_EQ(parsed.options.generation.eos_tokens, (std::vector<int32_t>{11, 12, 0}));
  EXPECT_EQ(parsed.options.timeout_seconds, 0.01);
  EXPECT_EQ(parsed.options.generation.rule.top_p, 0.5f);
  EXPECT_EQ(parse_words({"--weights", "s", "--seed", "-1"}).text,
            "lfm2_stage: --seed: \"-1\", expected an integer from 0 to 18446744073709551615 (see --help)\n");
  EXPECT_EQ(parse_words({"--weights", "s", "--tolerance", "nan"}).text,
            "lfm2_stage: --tolerance: \"nan\", expected a number from 0 up (see --help)\n");
}

TEST(OptionsTest, HelpAndVersionGoToStdout) {
  const ParsedCommandLine help = parse_words({"--help"}), version = parse_words({"--version"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_FALSE(help.run);
  EXPECT_NE(help.text.find("--top-logprobs"), std::string::npos);
  const auto says = [&](const char* text) { return help.text.find(text) != std::string::npos; };
  EXPECT_TRUE(says("WHICH:{last,all,none}=last") || says("WHICH:{last,all,none} [last]"))  // CLI11 to 2.3, from 2.4
      << help.text;
  for (const char each : help.text) EXPECT_TRUE(each == '\n' || (each >= ' ' && each <= '~'));
  EXPECT_EQ(version.text.find("lfm2_stage "), 0u);
}

TEST(ReportTest, StageReportSurvivesItsJson) {
  const StageReport report{
      .rank = 6,
      .stage = 2,
      .pieces = {{12, 6}},
      .host = "a\"b",
      .device = "CPU",
      .load_seconds = 1.5,
      .weight_bytes = 1ull << 40,
      .activation_bytes = 7,
      .peak_host_bytes = 9,
      .times = {.total = 4, .busy = 3, .busy_with = {3}, .sending = 2, .hidden = 1, .receiving = 0.5},
      .results_xxh3 = std::string(32, 'a'),
      .verdict = Verdict{.rows = 3, .top1_equal = 2, .largest_difference = 0.25, .tolerance = 1},
      .generation = GenerationReport{.tokens = 5, .first_token_median = 0.5, .preemptions = 3}};
  const StageReport back = stage_report_from_json(to_json(report));
  EXPECT_EQ(to_json(back), to_json(report));
  EXPECT_EQ(back.pieces, report.pieces);
  EXPECT_EQ(back.times.receiving, 0.5);
  EXPECT_EQ(back.rank, 6);
  EXPECT_EQ(back.generation->preemptions, 3);
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

TEST(ReportTest, PerplexityOfScores) {
  std::vector<StageReport> stages(2);
  EXPECT_FALSE(merged_scores(stages));
  for (StageReport& stage : stages) {
    stage.scores.emplace();
    stage.scores->add(-1, true);
    stage.scores->add(-3, false);
    stage = stage_report_from_json(to_json(stage));
  }
  JobReport job;
  job.results = {.positions = Positions::kAll, .score = true};
  job.scores = merged_scores(stages);
  job.scored_words = 2;
  job.scored_bytes = 16;
  job.seconds = {1};
  job.stages = stages;
  job.verdict = Verdict{.rows = 4, .top1_equal = 3, .largest_difference = 0.5, .of_scores = true};
  const Json json = Json::parse(to_json(job));
  const Json& scores = json.at("scores");
  EXPECT_EQ(json.at("positions"), "scored");
  EXPECT_EQ(scores.at("tokens"), 4);
  EXPECT_EQ(scores.at("likeliest_tokens"), 2);
  EXPECT_EQ(scores.at("sum_logprob"), -8);
  EXPECT_EQ(scores.at("perplexity").at("token").at("value"), std::exp(2.0));
  EXPECT_EQ(scores.at("perplexity").at("word").at("value"), std::exp(4.0));
  EXPECT_EQ(scores.at("perplexity").at("byte").at("value"), std::exp(0.5));
  EXPECT_FALSE(json.at("validation").contains("mean_kl_divergence"));
  const std::string table = end_table(job);
  EXPECT_NE(table.find("\nscores     4 tokens, 50.00 % of them the likeliest\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\nperplexity 7.38906 ± 4.3 by token (4), 54.5982 ± 63 by word (2), "), std::string::npos)
      << table;
  EXPECT_NE(table.find("tolerance 0)\n"), std::string::npos) << table;
  job.scored_words = job.scored_bytes = -1;
  EXPECT_EQ(end_table(job).find("by word"), std::string::npos);
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
    job.stages.back().pieces = {{2 * stage, 2}};
    job.stages.back().rank = stage;
    job.stages.back().times = {
        .total = 2, .busy = static_cast<double>(stage + 1), .busy_with = {static_cast<double>(stage + 1)}};
  }
  EXPECT_EQ(job.median_seconds(), 2);
  EXPECT_EQ(job.lost_share(), 0.25);
  // A stage that ends sooner is idle until the other one ends.
  job.stages[0].times.total = 1;
  EXPECT_EQ(job.lost_share(), 0.25);
  job.replicas = 2;  // each ends by itself
  EXPECT_EQ(job.lost_share(), 0);
  job.replicas = 1;
  job.stages[0].times.total = 2;
  EXPECT_DOUBLE_EQ(job.ideal_lost_share(), 1.0 / 6);
  JobReport nothing_left = job;
  nothing_left.micro_batches = 0;
  EXPECT_EQ(nothing_left.ideal_lost_share(), 0);
  const Json json = Json::parse(to_json(job));
  EXPECT_EQ(json.at("samples_per_second"), 5.0);
  EXPECT_EQ(json.at("validation").at("valid"), false);
  EXPECT_EQ(json.at("stages").size(), 2u);
  EXPECT_NE(end_table(job).find("INVALID    top-1 9/10"), std::string::npos);
  EXPECT_NE(end_table(job).find("4 layers in 2 stages, "), std::string::npos);
  EXPECT_EQ(json.at("stages")[1].at("layer_first"), 2);
  EXPECT_FALSE(json.at("stages")[1].contains("pieces"));
}

TEST(ReportTest, PiecesOfARing) {
  JobReport job{.model_type = "lfm2",
                .dtype = "fp32",
                .transport = "MPI",
                .version = "v",
                .layers = 8,
                .virtual_stages = 2,
                .micro_batches = 5,
                .results = {},
                .generation = {},
                .seconds = {1},
                .stages = {},
                .results_xxh3 = {},
                .verdict = {}};
  for (const int64_t stage : {0, 1}) {
    job.stages.emplace_back();
    job.stages.back().rank = stage;
    job.stages.back().pieces = {{2 * stage, 2}, {4 + 2 * stage, 2}};
    job.stages.back().times = {.total = 16, .busy = 10, .busy_with = {5, 5}};
  }
  EXPECT_DOUBLE_EQ(job.ideal_lost_share(), 1.0 / 11);
  job.micro_batches = 1;  // fewer than stages: it is in one of them at a time
  EXPECT_DOUBLE_EQ(job.ideal_lost_share(), 0.5);
  job.micro_batches = 5;
  const std::string table = end_table(job);
  EXPECT_NE(table.find("8 layers in 2 stages of 2 pieces, "), std::string::npos) << table;
  EXPECT_NE(table.find("  2-3,6-7  "), std::string::npos) << table;
  const StageReport back = stage_report_from_json(to_json(job.stages[1]));
  EXPECT_EQ(back.pieces, job.stages[1].pieces);
  EXPECT_EQ(back.times.busy_with, job.stages[1].times.busy_with);
}

// The report of two stages, each of which was busy with its pieces for so many seconds.
JobReport two_stages(int64_t pieces, int64_t micro_batches, const std::vector<double>& busy_with) {
  JobReport job;
  job.virtual_stages = pieces;
  job.micro_batches = micro_batches;
  job.seconds = {1};
  job.stages.resize(2);
  for (size_t stage = 0; stage < 2; ++stage) {
    job.stages[stage].rank = job.stages[stage].stage = static_cast<int64_t>(stage);
    job.stages[stage].times.busy_with = busy_with;
  }
  return job;
}

TEST(ReportTest, WhatTheScheduleCosts) {
  JobReport job = two_stages(1, 5, {5});
  // Equal pieces: fill and drain. Then the second stage takes three times as long: 1 + 5 · 3 turns, of which the first
  // one works in 5.
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), job.ideal_lost_share());
  job.stages[1].times.busy_with = {15};
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 20.0 / 32);
  EXPECT_NE(end_table(job).find("% of the stages' time; the schedule costs 37.5 %, fill and drain alone cost 16.7 %\n"),
            std::string::npos)
      << end_table(job);
  // On one device the two stages' times add up, and one of them is always idle.
  job.devices = {0, 0};
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 0.5);
  job.generation.emplace();
  EXPECT_FALSE(job.scheduled_lost_share());
}

TEST(ReportTest, WhatTheScheduleOfARingCosts) {
  JobReport job = two_stages(2, 3, {3, 3});
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), job.ideal_lost_share());
  // The last piece takes twice as long: it ends 1 + 3 + 3 · 2 turns after the first one began, or later.
  job.stages[1].times.busy_with = {3, 6};
  EXPECT_GT(job.scheduled_lost_share().value(), job.ideal_lost_share());
  EXPECT_NEAR(job.scheduled_lost_share().value(), 1 - 15.0 / 20, 1e-9);
}

// The times of single micro-batches, where there are all: two stages take 1 and 3, then 3 and 1.
TEST(ReportTest, TheScheduleIsReplayedWithTheTimeOfEachMicroBatch) {
  JobReport job = two_stages(1, 2, {4});
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 8.0 / 12);
  job.stages[0].times.busy_each = {{1, 3}};
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 8.0 / 12);  // not of all stages
  job.stages[1].times.busy_each = {{3, 1}};
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 8.0 / 10);
  const StageReport back = stage_report_from_json(to_json(job.stages[1]));
  EXPECT_EQ(back.times.busy_each, job.stages[1].times.busy_each);
  job.stages[1].times.busy_each = {{1, 3}};
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 8.0 / 14);
  job.stages[1].times.busy_each = {{4}};  // not of all micro-batches
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 8.0 / 12);
}

}  // namespace
}  // namespace lfm2
