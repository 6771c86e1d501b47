// Cutting samples into micro-batches.
#include "stage/scoring/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/error.h"

namespace lfm2 {
namespace {

SampleOffsets offsets_of(const std::vector<int64_t>& lengths) {
  SampleOffsets offsets;
  for (int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

MicroBatches all_plans(const SampleOffsets& offsets, int64_t micro_batch, int64_t target_tokens) {
  return {offsets, {}, {0, offsets.samples()}, micro_batch, target_tokens};
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
    std::vector<int32_t> lengths;
    for (int64_t j = 0; j < one.samples; ++j) lengths.push_back(static_cast<int32_t>(offsets.length(sample + j)));
    EXPECT_EQ(content_of_message(micro_batches.message(i), false).lengths, lengths);
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

TEST(PlanTest, EquallyLongSamplesAreToldInTwoWords) {
  const SampleOffsets offsets = offsets_of({7, 7, 7, 7, 2});
  const MicroBatches micro_batches = all_plans(offsets, 3, 0);
  EXPECT_EQ(micro_batches.message(0), (std::vector<int32_t>{3, 7}));
  EXPECT_EQ(micro_batches.message(1), (std::vector<int32_t>{2, 7, 2}));
  expect_covers(micro_batches, offsets);
  for (const std::vector<int32_t>& words : {std::vector<int32_t>{}, {3}, {0, 7}, {-1, 7}, {2, 7, 2, 1}, {3, 1, 2}})
    EXPECT_THROW(content_of_message(words, false), Error);
}

TEST(PlanTest, MessagesOfScoringHoldTheTargets) {
  const SampleOffsets offsets = offsets_of({3, 3, 2, 4}), scored = offsets_of({2, 1, 1, 2});
  const std::vector<int32_t> ids{10, 11, 12, 20, 21, 22, 30, 31, 40, 41, 42, 43};
  // The pipeline has the samples from 1 on.
  const MicroBatches micro_batches(offsets, std::span<const int32_t>(ids).subspan(3), {1, 3}, 2, 0, &scored);
  EXPECT_EQ(micro_batches.plan().first_scored, 2);
  EXPECT_EQ(micro_batches.plan().max_scored, 2);
  EXPECT_EQ(micro_batches.plan().max_rows({.positions = Positions::kAll, .score = true}), 2);
  EXPECT_EQ(micro_batches[0].scored, 2);
  EXPECT_EQ(micro_batches[1].first_scored, 2);
  EXPECT_EQ(micro_batches.message(0), (std::vector<int32_t>{2, 3, 2, 1, 1, 22, 31}));
  EXPECT_EQ(micro_batches.message(1), (std::vector<int32_t>{1, 4, 2, 42, 43}));
  const MicroBatchContent content = content_of_message(micro_batches.message(0), true);
  EXPECT_EQ(content.lengths, (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(content.scored, (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(content.targets, (std::vector<int32_t>{22, 31}));
  for (const std::vector<int32_t>& words : {std::vector<int32_t>{}, {1, 4}, {1, 4, 2, 42}, {0, 1, 1}, {2, 3, 2, 1}})
    EXPECT_THROW(content_of_message(words, true), Error);
}

TEST(PlanTest, TargetKeepsStagesBusy) {
  EXPECT_EQ(choose_target_tokens(1000, {1}, 512), 512);
  EXPECT_EQ(choose_target_tokens(5, {1}, 512), 5);
  EXPECT_EQ(choose_target_tokens(1, {8}, 512), 1);
  const int64_t target = choose_target_tokens(3200, {4}, 512);
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
  const std::vector<int32_t> ids{40, 41, 42, 43, 10, 50, 51, 52, 53, 54};
  const MicroBatches micro_batches(offsets, ids, {2, 3}, 2, 0);
  EXPECT_EQ(micro_batches.plan().first_sample, 2);
  EXPECT_EQ(micro_batches.plan().first_token, 4);
  ASSERT_EQ(micro_batches.plan().micro_batches, 2);
  EXPECT_EQ(micro_batches[1].first_sample, 2);
  EXPECT_EQ(micro_batches[1].first_token, 5);
  EXPECT_EQ(micro_batches.ids(1).front(), 50);
  EXPECT_EQ(micro_batches.ids(1).size(), 5u);
}

}  // namespace
}  // namespace lfm2
