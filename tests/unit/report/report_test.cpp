// The report: what is merged of the ranks, its JSON, the end table, and what is idle beside what the schedule costs.
#include "stage/report/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/json/json.h"
#include "stage/report/end_table.h"

namespace lfm2 {
namespace {

TEST(ReportTest, StageReportSurvivesItsWords) {
  const StageReport report{
      .rank = 6,
      .stage = 2,
      .pieces = {layers_of_blocks(25, 35)},
      .host = "a\"b",
      .device = "CPU",
      .load_seconds = 1.5,
      .weight_bytes = 1ull << 40,
      .activation_bytes = 7,
      .peak_host_bytes = 9,
      .times = {.total = 4, .busy = 3, .busy_with = {3}, .sending = 2, .hidden = 1, .receiving = 0.5},
      .results_xxh3 = std::string(32, 'a'),
      .verdict = Verdict{.rows = 3, .top1_equal = 2, .largest_difference = 0.25, .tolerance = 1},
      .generation = GenerationReport{
          .tokens = 5, .first_token_median = 0.5, .scheduled = {.requests = 4, .prompt_tokens = 9, .preemptions = 3}}};
  const StageReport back = from_words<StageReport>(to_words(report));
  EXPECT_EQ(to_words(back), to_words(report));
  EXPECT_EQ(back.pieces, report.pieces);
  EXPECT_EQ(back.times.receiving, 0.5);
  EXPECT_EQ(back.rank, 6);
  EXPECT_EQ(back.generation->scheduled.requests, 4);
  EXPECT_EQ(back.generation->scheduled.prompt_tokens, 9);
  EXPECT_EQ(back.generation->scheduled.preemptions, 3);
}

TEST(ReportTest, ReplicasAreAddedUp) {
  std::vector<StageReport> stages(4);
  EXPECT_EQ(merged_results_xxh3(stages), "");
  EXPECT_FALSE(merged_verdict(stages));
  stages[1].results_xxh3 = "00000000000000020000000000000001";
  stages[3].results_xxh3 = "0000000000000003ffffffffffffffff";  // carries
  EXPECT_EQ(merged_results_xxh3(stages), "00000000000000060000000000000000");
  stages[1].verdict =
      Verdict{.rows = 1, .top1_equal = 1, .largest_difference = 0.5, .kl = {.coarse = 4 << 20}, .tolerance = 1};
  stages[3].verdict = Verdict{.rows = 3, .top1_equal = 2, .largest_difference = 0.25, .tolerance = 1};
  EXPECT_EQ(merged_verdict(stages)->rows, 4);
  EXPECT_EQ(merged_verdict(stages)->top1_equal, 3);
  EXPECT_EQ(merged_verdict(stages)->largest_difference, 0.5);
  EXPECT_EQ(merged_verdict(stages)->mean_kl(), 1);
  EXPECT_TRUE(merged_verdict(stages)->valid());
  stages[1].verdict->largest_difference = std::nan("");
  EXPECT_FALSE(merged_verdict(stages)->valid());
  EXPECT_FALSE(from_words<StageReport>(to_words(stages[1])).verdict->valid());
}

TEST(ReportTest, PerplexityOfScores) {
  std::vector<StageReport> stages(2);
  EXPECT_FALSE(merged_scores(stages));
  for (StageReport& stage : stages) {
    stage.scores.emplace();
    stage.scores->add(-1, true);
    stage.scores->add(-3, false);
    stage = from_words<StageReport>(to_words(stage));
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
  EXPECT_NE(table.find("\nscores     4 tokens, 50.00 % of them top-1\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\nperplexity 7.38906 ± 4.3 by token (4), 54.5982 ± 63 by word (2), "), std::string::npos)
      << table;
  EXPECT_NE(table.find("tolerance 0)\n"), std::string::npos) << table;
  job.scored_words = job.scored_bytes = -1;
  EXPECT_EQ(end_table(job).find("by word"), std::string::npos);
}

TEST(ReportTest, FiguresOfTheJob) {
  JobReport job{.model_type = "lfm2",
                .dtype = "fp32",
                .cache_dtype = "fp8",
                .transport = "MPI",
                .version = "v",
                .layers = 4,
                .samples = 10,
                .tokens = 100,
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
    job.stages.back().micro_batches = 5;
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
  nothing_left.stages[0].micro_batches = 0;
  EXPECT_EQ(nothing_left.ideal_lost_share(), 0);
  const Json json = Json::parse(to_json(job));
  EXPECT_EQ(json.at("samples_per_second"), 5.0);
  EXPECT_EQ(json.at("validation").at("valid"), false);
  EXPECT_EQ(json.at("stages").size(), 2u);
  EXPECT_NE(end_table(job).find("INVALID    top-1 9/10"), std::string::npos);
  EXPECT_NE(
      end_table(job).find("\njob        10 prompts, 100 tokens in all, 50 tokens generated in 2.000 s: 5 steps of up "
                          "to 2 sequences\n"),
      std::string::npos)
      << end_table(job);
  EXPECT_NE(end_table(job).find("4 layers in 2 stages, fp32, keys and values in fp8, on "), std::string::npos);
  EXPECT_EQ(json.at("cache_dtype"), "fp8");
  EXPECT_EQ(json.at("stages")[1].at("layer_first"), 2);
  EXPECT_FALSE(json.at("stages")[1].contains("pieces"));
}

// Each replica counts its own micro-batches, and the job those of all, though every stage of a pipeline has them.
TEST(ReportTest, MicroBatchesOfAllReplicas) {
  JobReport job;
  job.replicas = 2;
  job.seconds = {1};
  job.stages.resize(4);
  for (size_t rank = 0; rank < 4; ++rank) {
    job.stages[rank].stage = static_cast<int64_t>(rank % 2);
    job.stages[rank].micro_batches = rank < 2 ? 3 : 7;
    job.stages[rank].times.busy_with = {1};
  }
  const Json json = Json::parse(to_json(job));
  EXPECT_EQ(json.at("micro_batches"), 10);
  EXPECT_EQ(json.at("stages")[3].at("micro_batches"), 7);
  EXPECT_DOUBLE_EQ(job.ideal_lost_share(), 1.0 / 4);  // of the first replica
  EXPECT_NE(end_table(job).find(": 10 micro-batches of up to "), std::string::npos) << end_table(job);
}

TEST(ReportTest, PiecesOfARing) {
  JobReport job{.model_type = "lfm2",
                .dtype = "fp32",
                .cache_dtype = "fp32",
                .transport = "MPI",
                .version = "v",
                .layers = 8,
                .virtual_stages = 2,
                .results = {},
                .generation = {},
                .seconds = {1},
                .stages = {},
                .results_xxh3 = {},
                .verdict = {}};
  for (const int64_t stage : {0, 1}) {
    job.stages.emplace_back();
    job.stages.back().rank = stage;
    job.stages.back().micro_batches = 5;
    job.stages.back().pieces = {layers_of_blocks(4 * stage, 4 * stage + 3),
                                layers_of_blocks(9 + 4 * stage, 12 + 4 * stage)};
    job.stages.back().times = {.total = 16, .busy = 10, .busy_with = {5, 5}};
  }
  EXPECT_DOUBLE_EQ(job.ideal_lost_share(), 1.0 / 11);
  job.stages[0].micro_batches = 1;  // fewer than stages: it is in one of them at a time
  EXPECT_DOUBLE_EQ(job.ideal_lost_share(), 0.5);
  job.stages[0].micro_batches = 5;
  const std::string table = end_table(job);
  EXPECT_NE(table.find("8 layers in 2 stages of 2 pieces, "), std::string::npos) << table;
  EXPECT_NE(table.find("  2-3m,6f-7  "), std::string::npos) << table;
  const StageReport back = from_words<StageReport>(to_words(job.stages[1]));
  EXPECT_EQ(back.pieces, job.stages[1].pieces);
  EXPECT_EQ(back.times.busy_with, job.stages[1].times.busy_with);
}

// The report of two stages, each of which was busy with its pieces for so many seconds.
JobReport two_stages(int64_t pieces, int64_t micro_batches, const std::vector<double>& busy_with) {
  JobReport job;
  job.virtual_stages = pieces;
  job.seconds = {1};
  job.stages.resize(2);
  for (size_t stage = 0; stage < 2; ++stage) {
    job.stages[stage].rank = job.stages[stage].stage = static_cast<int64_t>(stage);
    job.stages[stage].micro_batches = micro_batches;
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
  const StageReport back = from_words<StageReport>(to_words(job.stages[1]));
  EXPECT_EQ(back.times.busy_each, job.stages[1].times.busy_each);
  job.stages[1].times.busy_each = {{1, 3}};
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 8.0 / 14);
  job.stages[1].times.busy_each = {{4}};  // not of all micro-batches
  EXPECT_DOUBLE_EQ(job.scheduled_lost_share().value(), 1 - 8.0 / 12);
}

}  // namespace
}  // namespace lfm2
