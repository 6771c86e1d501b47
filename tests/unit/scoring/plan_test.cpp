// Cutting samples into micro-batches.
#include "stage/scoring/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.h"

namespace lfm2 {
namespace {

SampleOffsets offsets_of(const std::vector<int64_t>& lengths) {
  SampleOffsets offsets;
  for (int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

MicroBatches all_plans(const SampleOffsets& offsets, int64_t micro_batch, int64_t target_tokens) {
  return {offsets, {}, {micro_batch, target_tokens}};
}

void expect_covers(const MicroBatches& micro_batches, const SampleOffsets& offsets) {
  const BatchPlan& plan = micro_batches.plan();
  int64_t sample = 0, token = 0, max_tokens = 0, max_samples = 0;
  for (int64_t i = 0; i < plan.micro_batches; ++i) {
    const MicroBatch one = micro_batches[i];
    EXPECT_EQ(one.first_sample, sample);
    EXPECT_EQ(one.first_token, token);
    EXPECT_GE(one.samples, 1);
    max_tokens = std::max(max_tokens, one.tokens);
    max_samples = std::max(max_samples, one.samples);
    sample += one.samples;
    token += one.tokens;
    EXPECT_EQ(token, offsets[sample]);
  }
  EXPECT_EQ(sample, plan.samples);
  EXPECT_EQ(token, plan.tokens);
  EXPECT_EQ(max_tokens, plan.max_tokens);
  EXPECT_EQ(max_samples, plan.max_samples);
}

TEST(PlanTest, GivenSamplesPerMicroBatch) {
  const SampleOffsets offsets = offsets_of({3, 1, 4, 1, 5});
  const MicroBatches micro_batches = all_plans(offsets, 2, 0);
  ASSERT_EQ(micro_batches.plan().micro_batches, 3);
  EXPECT_EQ(micro_batches[0].tokens, 4);
  EXPECT_EQ(micro_batches[1].tokens, 5);
  EXPECT_EQ(micro_batches[2].tokens, 5);
  expect_covers(micro_batches, offsets);
}

TEST(PlanTest, ChosenMicroBatchesHoldTheTarget) {
  const SampleOffsets offsets = offsets_of({10, 200, 3, 3, 3, 90, 20});
  const MicroBatches micro_batches = all_plans(offsets, 0, 100);
  for (int64_t i = 0; i < micro_batches.plan().micro_batches; ++i)
    EXPECT_TRUE(micro_batches[i].tokens <= 100 || micro_batches[i].samples == 1);
  expect_covers(micro_batches, offsets);
}

TEST(PlanTest, CoversEveryCountAndSize) {
  for (int64_t samples = 1; samples < 20; ++samples)
    for (int64_t size = 0; size < 22; ++size) {
      std::vector<int64_t> lengths(static_cast<size_t>(samples));
      std::iota(lengths.begin(), lengths.end(), 1);
      const SampleOffsets offsets = offsets_of(lengths);
      expect_covers(all_plans(offsets, size, 8), offsets);
    }
}

// Where a token costs more the more tokens are in front of it, parts get smaller, so that they cost alike. The largest
// is as large as asked for.
TEST(PlanTest, PartsCostAlike) {
  constexpr int64_t kLength = 65536;
  const SampleOffsets offsets = offsets_of({kLength});
  for (const double growth : {1e-9, 2.5e-5, 1e-3})
    for (const int64_t target : {1024, 4096, 10000, 40000}) {
      const MicroBatches::Size size{.tokens = target, .smallest_part = 512, .growth = growth};
      const MicroBatches parts(offsets, {}, size);
      const BatchPlan& plan = parts.plan();
      ASSERT_EQ(plan.micro_batches, MicroBatches::parts(kLength, size));
      ASSERT_LE(plan.micro_batches, MicroBatches::max_parts(kLength, size));
      EXPECT_LE(plan.max_tokens, MicroBatches::largest_part(kLength, size, plan.micro_batches));
      const bool as_asked = plan.micro_batches < MicroBatches::max_parts(kLength, size);
      EXPECT_TRUE(!as_asked || 2 * plan.max_tokens <= 3 * target) << plan.max_tokens;
      double cheapest = std::numeric_limits<double>::infinity(), dearest = 0;
      int64_t past = 0;
      for (int64_t i = 0; i < plan.micro_batches; ++i) {
        const MicroBatch part = parts[i];
        ASSERT_EQ(part.past, past);
        ASSERT_GE(part.tokens, size.smallest_part);
        past += part.tokens;
        const auto tokens = static_cast<double>(part.tokens);
        const double cost = tokens * (1 + growth * (static_cast<double>(part.past) + tokens / 2));
        cheapest = std::min(cheapest, cost);
        dearest = std::max(dearest, cost);
      }
      ASSERT_EQ(past, kLength);
      EXPECT_LT(dearest, 1.005 * cheapest) << growth << " " << target;
    }
}

// Parts follow one another without a gap, are about as large as asked for, and each scores the tokens behind its own.
TEST(PlanTest, LongSamplesGoInParts) {
  const SampleOffsets offsets = offsets_of({5, 100, 3, 16, 17, 60, 1});
  std::vector<int32_t> ids(static_cast<size_t>(offsets.back()));
  std::iota(ids.begin(), ids.end(), 0);
  SampleOffsets scored;
  for (const int64_t count : {4, 99, 1, 2, 16, 20, 0}) scored.push_back(scored.back() + count);
  for (const bool scores : {false, true}) {
    const MicroBatches micro_batches(offsets, ids, {.tokens = 16, .smallest_part = 8}, scores ? &scored : nullptr);
    const BatchPlan& plan = micro_batches.plan();
    EXPECT_EQ(plan.longest_in_parts, 100);
    int64_t token = 0, samples = 0, next_scored = 0, parts = 0;
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < plan.micro_batches; ++i) {
      const MicroBatch one = micro_batches[i];
      SCOPED_TRACE(i);
      EXPECT_EQ(one.first_token, token);
      EXPECT_EQ(one.first_sample, samples);
      EXPECT_LE(one.tokens, plan.max_tokens);
      EXPECT_LE(one.tokens, 24);
      const MicroBatchContent content = micro_batches.content(i);
      EXPECT_EQ(content.ids,
                std::vector<int32_t>(ids.begin() + one.first_token, ids.begin() + one.first_token + one.tokens));
      EXPECT_EQ(std::accumulate(content.lengths.begin(), content.lengths.end(), int64_t{0}), one.tokens);
      if (one.is_part()) {
        ++parts;
        EXPECT_GE(one.tokens, 8);
        EXPECT_EQ(one.whole, offsets.length(one.first_sample));
        EXPECT_EQ(one.past, one.first_token - offsets[one.first_sample]);
        EXPECT_EQ(one.ends_samples(), one.samples == 1);
      }
      token += one.tokens;
      samples += one.samples;
      if (!scores) continue;
      EXPECT_EQ(one.first_scored, next_scored);
      EXPECT_EQ(one.scored, std::ssize(content.targets));
      EXPECT_LE(one.scored, plan.max_scored);
      next_scored += one.scored;
      targets.insert(targets.end(), content.targets.begin(), content.targets.end());
      // Each target stands behind a token of the micro-batch.
      if (one.is_part())
        for (const int32_t target : content.targets) {
          EXPECT_GT(target, one.first_token);
          EXPECT_LE(target, one.first_token + one.tokens);
        }
    }
    EXPECT_EQ(token, offsets.back());
    EXPECT_EQ(samples, 7);
    EXPECT_EQ(parts, 6 + 4);  // 17 tokens are not worth two
    if (!scores) continue;
    std::vector<int32_t> expected;
    for (int64_t sample = 0; sample < 7; ++sample)
      for (int64_t at = offsets[sample + 1] - scored.length(sample); at < offsets[sample + 1]; ++at)
        expected.push_back(static_cast<int32_t>(at));
    EXPECT_EQ(targets, expected);
  }
  // Parts may be smaller than the micro-batches that other samples make.
  const SampleOffsets one = offsets_of({100});
  EXPECT_EQ(MicroBatches(one, {}, {.tokens = 50, .smallest_part = 8, .part = 10}).plan().micro_batches, 10);
}

TEST(PlanTest, ContentOfScoringHoldsTheTargets) {
  const SampleOffsets offsets = offsets_of({3, 3, 2, 4}), scored = offsets_of({2, 1, 1, 2});
  const std::vector<int32_t> ids{10, 11, 12, 20, 21, 22, 30, 31, 40, 41, 42, 43};
  const MicroBatches micro_batches(offsets, ids, {2, 0}, &scored);
  EXPECT_EQ(micro_batches.plan().max_scored, 3);
  EXPECT_EQ(micro_batches.plan().max_rows({.positions = Positions::kAll, .score = true}), 3);
  const auto content = from_words<MicroBatchContent>(to_words(micro_batches.content(1)));
  EXPECT_EQ(content.samples.first_sample, 2);
  EXPECT_EQ(content.samples.first_token, 6);
  EXPECT_EQ(content.samples.first_scored, 3);
  EXPECT_EQ(content.samples.scored, 3);
  EXPECT_EQ(content.lengths, (std::vector<int32_t>{2, 4}));
  EXPECT_EQ(content.scored, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(content.targets, (std::vector<int32_t>{31, 42, 43}));
  EXPECT_EQ(content.ids, (std::vector<int32_t>{30, 31, 40, 41, 42, 43}));
}

// With replicas the last micro-batches are small, so that no replica has much left when another one has nothing.
TEST(PlanTest, TheLastMicroBatchesOfReplicasAreSmall) {
  const SampleOffsets offsets = SampleOffsets::equally_long(3000, 10);
  const MicroBatches micro_batches(offsets, {}, {.tokens = 800, .replicas = 3});
  expect_covers(micro_batches, offsets);
  const int64_t count = micro_batches.plan().micro_batches;
  EXPECT_EQ(micro_batches[0].tokens, 800);
  EXPECT_LE(micro_batches[count - 1].tokens, 100);
  for (int64_t i = 1; i < count; ++i) EXPECT_LE(micro_batches[i].tokens, micro_batches[i - 1].tokens);
  EXPECT_LE(count, 30000 / 800 + 3 * 8) << "too many small ones";
}

// In a short job each replica gets as many samples, in as few micro-batches as one pipeline would need for its share.
TEST(PlanTest, ReplicasGetEvenShares) {
  for (const int64_t tokens : {15424, 16384, 8192, 5000}) {
    const SampleOffsets offsets = SampleOffsets::equally_long(1024, 32);
    const MicroBatches micro_batches(offsets, {}, {.tokens = tokens, .replicas = 2});
    expect_covers(micro_batches, offsets);
    const int64_t count = micro_batches.plan().micro_batches, whole = tokens / 32;
    EXPECT_EQ(count, 2 * ((512 + whole - 1) / whole)) << tokens;
    for (int64_t i = 0; i < count; i += 2)
      EXPECT_LE(micro_batches[i].samples - micro_batches[i + 1].samples, 1) << tokens;
  }
}

// Samples of unequal lengths do not leave a micro-batch of a few tokens over.
TEST(PlanTest, ReplicasGetNoMicroBatchMore) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<int64_t> lengths(200 + random() % 400);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 60);
    const SampleOffsets offsets = offsets_of(lengths);
    const MicroBatches micro_batches(offsets, {}, {.tokens = 4000, .replicas = 2});
    expect_covers(micro_batches, offsets);
    const BatchPlan& plan = micro_batches.plan();
    EXPECT_LE(plan.micro_batches, 2 * ((plan.tokens + 120 + 7999) / 8000)) << plan.tokens;
  }
}

TEST(PlanTest, TargetKeepsStagesBusy) {
  EXPECT_EQ(choose_target_tokens(1000, {1}, 512), 512);
  EXPECT_EQ(choose_target_tokens(5, {1}, 512), 5);
  EXPECT_EQ(choose_target_tokens(1, {8}, 512), 1);
  const int64_t target = choose_target_tokens(3200, {4}, 512);
  EXPECT_GE((3200 + target - 1) / target, 15);  // at least five micro-batches for each step of the fill
}

// Twice as many tokens where their last positions are no more rows than there are buffers for.
TEST(PlanTest, MicroBatchesAreLargestWhereResultsAreFew) {
  const ResultKind last, all{.positions = Positions::kAll}, scores{.positions = Positions::kAll, .score = true};
  EXPECT_EQ(max_measured_target(DType::kBf16, last, 32), 65536);
  EXPECT_EQ(max_measured_target(DType::kBf16, last, 63), 65536);
  EXPECT_EQ(max_measured_target(DType::kBf16, last, 64), 131072);
  EXPECT_EQ(max_measured_target(DType::kF16, last, 65536), 131072);
  EXPECT_EQ(max_measured_target(DType::kBf16, {.hidden = Hidden::kLast}, 2048), 131072);
  EXPECT_EQ(max_measured_target(DType::kBf16, {.hidden = Hidden::kMean}, 2048), 65536);
  for (const ResultKind& kind : {all, scores}) EXPECT_EQ(max_measured_target(DType::kBf16, kind, 2048), 65536);
  EXPECT_EQ(max_measured_target(DType::kF32, last, 2048), 16384);
}

}  // namespace
}  // namespace lfm2
