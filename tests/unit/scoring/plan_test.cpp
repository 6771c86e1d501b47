// Cutting samples into micro-batches.
#include "stage/scoring/plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/error.h"
#include "support/plans.h"

namespace lfm2 {
namespace {

SampleOffsets offsets_of(const std::vector<int64_t>& lengths) {
  SampleOffsets offsets;
  for (int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

void expect_covers(const BatchPlan& plan) {
  int64_t sample = 0, token = 0;
  for (int64_t i = 0; i < plan.items(); ++i) {
    const MicroBatch item = plan.item(i);
    EXPECT_EQ(item.first_sample, sample);
    EXPECT_EQ(item.first_token, token);
    EXPECT_GE(item.samples, 1);
    EXPECT_LE(item.tokens, plan.max_tokens);
    EXPECT_LE(item.samples, plan.max_samples);
    sample += item.samples;
    token += item.tokens;
    EXPECT_EQ(token, plan.offset(sample));
  }
  EXPECT_EQ(sample, plan.samples);
  EXPECT_EQ(token, plan.tokens);
}

TEST(PlanTest, GivenSamplesPerMicroBatch) {
  const SampleOffsets offsets = offsets_of({3, 1, 4, 1, 5});
  const BatchPlan plan = test::plan_of(offsets, 2, 0);
  ASSERT_EQ(plan.items(), 3);
  EXPECT_EQ(plan.item(0).tokens, 4);
  EXPECT_EQ(plan.item(1).tokens, 5);
  EXPECT_EQ(plan.item(2).tokens, 5);
  EXPECT_EQ(plan.max_length, 5);
  expect_covers(plan);
}

TEST(PlanTest, ChosenMicroBatchesHoldTheTarget) {
  const SampleOffsets offsets = offsets_of({10, 200, 3, 3, 3, 90, 20});
  const BatchPlan plan = test::plan_of(offsets, 0, 100);
  for (int64_t i = 0; i < plan.items(); ++i) EXPECT_TRUE(plan.item(i).tokens <= 100 || plan.item(i).samples == 1);
  expect_covers(plan);
}

TEST(PlanTest, CoversEveryCountAndSize) {
  for (int64_t samples = 1; samples < 20; ++samples)
    for (int64_t size = 0; size < 22; ++size) {
      std::vector<int64_t> lengths(static_cast<size_t>(samples));
      std::iota(lengths.begin(), lengths.end(), 1);
      const SampleOffsets offsets = offsets_of(lengths);
      expect_covers(test::plan_of(offsets, size, 8));
    }
}

TEST(PlanTest, TargetKeepsStagesBusy) {
  EXPECT_EQ(choose_target_tokens(1000, 1, 512), 512);
  EXPECT_EQ(choose_target_tokens(5, 1, 512), 5);
  EXPECT_EQ(choose_target_tokens(1, 8, 512), 1);
  const int64_t target = choose_target_tokens(3200, 4, 512);
  EXPECT_GE((3200 + target - 1) / target, 15);  // at least five micro-batches for each step of the fill
}

TEST(ReplicaSamplesTest, EveryPipelineGetsItsShareInOrder) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1, 1, 1, 1}, {100, 1, 1, 1, 1}, {1, 1, 1, 1, 100}, {5, 7, 3, 9, 2, 8, 1, 1, 30, 4}}) {
    const SampleOffsets offsets = offsets_of(lengths);
    for (int64_t replicas = 1; replicas <= 4; ++replicas) {
      int64_t next = 0;
      for (int64_t replica = 0; replica < replicas; ++replica) {
        const SampleRange range = replica_samples(offsets, replicas, replica);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.count, 1);
        next += range.count;
      }
      EXPECT_EQ(next, static_cast<int64_t>(lengths.size()));
    }
  }
  const SampleOffsets even = offsets_of(std::vector<int64_t>(1024, 32));
  for (int64_t replica = 0; replica < 4; ++replica) EXPECT_EQ(replica_samples(even, 4, replica).count, 256);
  EXPECT_THROW(replica_samples(offsets_of({3, 3}), 3, 0), Error);
}

TEST(ReplicaSamplesTest, APlanOfAPartKnowsWhereItStands) {
  const SampleOffsets offsets = offsets_of({3, 1, 4, 1, 5});
  const BatchPlan plan = make_plan(offsets, {2, 3}, 2, 0);
  EXPECT_EQ(plan.first_sample, 2);
  EXPECT_EQ(plan.first_token, 4);
  for (const auto& [sample, token] : {std::pair(0, 0), std::pair(1, 4), std::pair(2, 5), std::pair(3, 10)})
    EXPECT_EQ(plan.offset(sample), token);
  EXPECT_EQ(plan.items(), 2);
}

}  // namespace
}  // namespace lfm2
