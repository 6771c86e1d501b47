// The chosen number of drafts: by acceptance and by step times, which are those of a table here.
#include "stage/generation/draft_length.h"

#include <gtest/gtest.h>

#include "support/timed_drafts.h"

namespace lfm2::test {
namespace {

TEST(StepTimesTest, NumbersOfRowsShareATime) {
  for (int64_t rows = 1; rows <= 16; ++rows) EXPECT_EQ(StepTimes::rounded(rows), rows);
  for (const auto& [rows, smallest] : {std::pair(17, 16), {18, 18}, {31, 30}, {32, 32}, {35, 32}, {36, 36}, {288, 288}})
    EXPECT_EQ(StepTimes::rounded(rows), smallest);
  for (int64_t rows = 1; rows < 3840; ++rows) {
    EXPECT_LE(StepTimes::rounded(rows), rows);
    EXPECT_GT(StepTimes::rounded(rows) * 9, rows * 8) << "at most an eighth is lost";
    EXPECT_EQ(StepTimes::rounded(StepTimes::rounded(rows)), StepTimes::rounded(rows));
  }
  EXPECT_EQ(StepTimes::rounded(100'000), 3840);
}

TEST(StepTimesTest, AreMediansOfTheNewest) {
  StepTimes times;
  EXPECT_EQ(times.estimate(4, false).seconds, 0);
  for (const double seconds : {9.0, 2.0, 3.0}) times.add(4, false, seconds);
  EXPECT_EQ(times.estimate(4, false).seconds, 3);
  EXPECT_TRUE(times.estimate(4, false).measured);
  for (const double seconds : {5.0, 5.0, 5.0, 90.0, 5.0}) times.add(4, false, seconds);
  EXPECT_EQ(times.estimate(4, false).seconds, 5);
}

TEST(StepTimesTest, WhatWasNotMeasuredIsGuessed) {
  StepTimes times;
  times.add(4, false, 2);
  times.add(16, false, 4);
  EXPECT_NEAR(times.estimate(8, false).seconds, 2 * std::sqrt(2), 1e-9);
  EXPECT_FALSE(times.estimate(8, false).measured);
  EXPECT_NEAR(times.estimate(1, false).seconds, 0.5, 1e-9);
  EXPECT_NEAR(times.estimate(1024, false).seconds, 8, 1e-9);
  // With drafts the same, unless such steps are known to take longer.
  EXPECT_NEAR(times.estimate(8, true).seconds, 2 * std::sqrt(2), 1e-9);
  times.add(8, true, 3);
  EXPECT_EQ(times.estimate(8, true).seconds, 3);
  EXPECT_FALSE(times.estimate(9, true).measured);
  EXPECT_GT(times.estimate(9, true).seconds, 3);
  EXPECT_NEAR(times.estimate(8, false).seconds, 2 * std::sqrt(2), 1e-9);
}

TEST(StepTimesTest, AreForgotten) {
  StepTimes times;
  times.add(1, false, 1);
  for (int step = 0; step < 4; ++step) times.add(2, true, 2);
  for (int step = 0; step < 250; ++step) times.add(3, false, 3);
  EXPECT_TRUE(times.estimate(1, false).measured);
  for (int step = 0; step < 10; ++step) times.add(3, false, 3);
  EXPECT_FALSE(times.estimate(1, false).measured) << "one measurement may be an outlier";
  EXPECT_TRUE(times.estimate(2, true).measured);
  for (int step = 0; step < 800; ++step) times.add(3, false, 3);
  EXPECT_FALSE(times.estimate(2, true).measured);
  EXPECT_TRUE(times.estimate(3, false).measured);
}

TEST(DraftSuccessTest, FollowsTheDrafts) {
  DraftSuccess success;
  EXPECT_EQ(success.chance(), 0.75);
  for (int step = 0; step < 200; ++step) success.on_verified(4, step % 2 == 0 ? 4 : 0);
  EXPECT_NEAR(success.chance(), 0.8, 0.03);  // four of five tries: drafts after the first wrong one were not tried
  for (int step = 0; step < 200; ++step) success.on_verified(4, 0);
  EXPECT_LT(success.chance(), 0.01);
  for (int step = 0; step < 63; ++step) success.on_step();
  EXPECT_FALSE(success.is_due());
  success.on_step();
  EXPECT_TRUE(success.is_due());
  success.on_try();
  EXPECT_FALSE(success.is_due());
  success.on_verified(1, 1);
  EXPECT_EQ(success.chance(), 0.75) << "the text has changed";
}

using Numbers = std::vector<int64_t>;

TEST(DraftLengthTest, FixedNumbers) {
  const DraftLengths lengths(true);
  EXPECT_EQ(lengths.choose(3, std::vector<DraftOffer>{{0.1, 4}, {0.9, 2}, {0.5, 4}}, 7), (Numbers{4, 2, 1}));
}

TEST(DraftLengthTest, TheBestChancesComeFirst) {
  DraftLengths lengths(false);
  const std::vector<DraftOffer> offers{{0.3, 8}, {0.9, 3}, {0.6, 8}, {0.1, 8, true}, {0.01, 8}};
  EXPECT_EQ(lengths.choose(5, offers, 20), Numbers(5)) << "the first step is one to compare with";
  lengths.times().add(5, false, 1);
  for (int64_t rows = 6; rows < 26; ++rows) lengths.times().add(rows, true, rows < 12 ? 1.1 : 5);
  // 0.9, 0.81, 0.729, 0.6, 0.36 and 0.3; then one that was due.
  EXPECT_EQ(lengths.choose(5, offers, 20), (Numbers{1, 3, 2, 1, 0}));
  EXPECT_EQ(lengths.choose(5, offers, 4), (Numbers{0, 3, 1, 0, 0}));
  for (int64_t rows = 6; rows < 12; ++rows)
    for (int time = 0; time < 3; ++time) lengths.times().add(rows, true, 5);
  EXPECT_EQ(lengths.choose(5, offers, 20), (Numbers{0, 0, 0, 1, 0}));
}

TEST(DraftLengthTest, KeepsTheNumberOfRowsForSmallGains) {
  DraftLengths lengths(false);
  lengths.times().add(2, false, 1);
  for (int64_t rows = 3; rows < 12; ++rows) lengths.times().add(rows, true, 0.7 + 0.15 * static_cast<double>(rows));
  const auto drafts = [&](double chance) {
    const Numbers counts = lengths.choose(2, std::vector<DraftOffer>{{chance, 8}, {chance, 8}}, 16);
    const int64_t rows = 2 + counts[0] + counts[1];
    lengths.on_step(rows);
    return rows;
  };
  const int64_t before = drafts(0.8);
  EXPECT_GT(before, 4);
  for (const double chance : {0.79, 0.78, 0.81, 0.82}) EXPECT_EQ(drafts(chance), before);
  EXPECT_LT(drafts(0.5), before);
}

// LFM2-8B-A1B on an H200, rows of separate texts.
const StepTable kMixture{{1, 1.13},  {2, 1.58},  {4, 2.26},   {8, 3.15},   {16, 3.95},  {32, 4.43},
                         {64, 4.53}, {128, 4.7}, {256, 5.04}, {512, 5.95}, {1024, 8.65}};
// A model whose rows all read the same weights, and a processor that has no time to spare.
const StepTable kDense{{1, 1}, {64, 1.05}, {1024, 8}};
const StepTable kBusy{{1, 1}, {1024, 1024}};

// The speed with drafts in multiples of that without.
double gain(const StepTable& table, int64_t sequences, double share, double host = 0) {
  TimedDrafts plain{.table = table, .sequences = sequences, .host = host};
  TimedDrafts drafts{.table = table, .sequences = sequences, .shares = {share}, .host = host};
  return drafts.speed() / plain.speed();
}

TEST(DraftSpeedTest, OfAMixtureOfExperts) {
  struct Way {
    int64_t sequences;
    double share, least;
  };
  for (const Way& way : {Way{1, 0.5, 1.05}, Way{1, 0.7, 1.22}, Way{1, 0.9, 1.9}, Way{8, 0.5, 1.3}, Way{8, 0.7, 1.8},
                         Way{8, 0.9, 3.5}, Way{32, 0.5, 1.5}, Way{32, 0.7, 2}, Way{32, 0.9, 4.2}, Way{128, 0.7, 1.6}})
    EXPECT_GE(gain(kMixture, way.sequences, way.share), way.least) << way.sequences << " sequences, " << way.share;
}

TEST(DraftSpeedTest, OfADenseModel) {
  EXPECT_GE(gain(kDense, 1, 0.7), 3);
  EXPECT_GE(gain(kDense, 8, 0.7), 2.5);
  EXPECT_GE(gain(kDense, 1, 1), 8);
}

// Also where the host takes its time before each step that waits for drafts.
TEST(DraftSpeedTest, DraftsThatDoNotPayCostLittle) {
  for (const StepTable& table : {kMixture, kDense, kBusy})
    for (const int64_t sequences : {1, 2, 8, 32})
      for (const double host : {0.0, 50e-6}) EXPECT_GE(gain(table, sequences, 0, host), 0.97) << sequences;
  for (const int64_t sequences : {1, 8, 32}) EXPECT_GE(gain(kBusy, sequences, 0.7), 0.96) << sequences;
}

// Sequences whose drafts are right get them, whatever the others' are.
TEST(DraftSpeedTest, EachSequenceHasItsOwnNumber) {
  TimedDrafts job{.table = kMixture, .sequences = 8, .shares = {0, 0, 0, 0.9}};
  job.speed();
  for (size_t sample = 0; sample < 8; ++sample)
    if (sample % 4 == 3)
      EXPECT_GT(job.accepted[sample], 600);
    else
      EXPECT_EQ(job.accepted[sample], 0);
  EXPECT_LT(job.counts.draft_tokens, 4000);
}

// A sequence without drafts tries one now and then, and has drafts again where its text repeats itself.
TEST(DraftSpeedTest, DraftsAreTriedAgain) {
  for (const double host : {0.0, 50e-6}) {
    TimedDrafts job{.table = kMixture, .shares = {0.9}, .right_from = 400, .host = host};
    job.speed();
    EXPECT_GT(job.accepted[0], 300);
    TimedDrafts wrong{.table = kMixture, .shares = {0}, .host = host};
    wrong.speed();
    EXPECT_LT(wrong.counts.draft_rounds, 40);
  }
}

// Drafts that the last stage makes cost its time, and a single stage waits for those that it asked for.
TEST(DraftSpeedTest, DraftsOfTheLastStageAreAskedForWhereTheyPay) {
  const StepTable flat = {{1, 1.0}, {16, 1.2}, {128, 2.0}};
  for (const int64_t sequences : {1, 4}) {
    SCOPED_TRACE(sequences);
    const double plain = TimedDrafts{.table = flat, .sequences = sequences}.speed();
    TimedDrafts good{.table = flat, .sequences = sequences, .shares = {0.8}, .drafter = 0.3e-3};
    EXPECT_GT(good.speed(), 1.8 * plain);
    TimedDrafts slow{.table = flat, .sequences = sequences, .shares = {0.5}, .drafter = 5e-3};
    EXPECT_GT(slow.speed(), 0.8 * plain);
    EXPECT_LT(slow.counts.draft_rounds, sequences * 80);
  }
}

}  // namespace
}  // namespace lfm2::test
