// Cutting samples into micro-batches.
#include "stage/plan.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lfm2 {
namespace {

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

void expect_covers(const BatchPlan& plan) {
  int64_t sample = 0, token = 0;
  for (const MicroBatch& item : plan.items) {
    EXPECT_EQ(item.first_sample, sample);
    EXPECT_EQ(item.first_token, token);
    EXPECT_GE(item.samples, 1);
    EXPECT_LE(item.tokens, plan.max_tokens);
    EXPECT_LE(item.samples, plan.max_samples);
    sample += item.samples;
    token += item.tokens;
    EXPECT_EQ(token, plan.offsets[static_cast<size_t>(sample)]);
  }
  EXPECT_EQ(sample, plan.samples());
}

TEST(PlanTest, GivenSamplesPerMicroBatch) {
  const BatchPlan plan = make_plan(offsets_of({3, 1, 4, 1, 5}), 2, 0);
  ASSERT_EQ(plan.items.size(), 3u);
  EXPECT_EQ(plan.items[0].tokens, 4);
  EXPECT_EQ(plan.items[1].tokens, 5);
  EXPECT_EQ(plan.items[2].tokens, 5);
  EXPECT_EQ(plan.max_length, 5);
  expect_covers(plan);
}

TEST(PlanTest, ChosenMicroBatchesHoldTheTarget) {
  const BatchPlan plan = make_plan(offsets_of({10, 200, 3, 3, 3, 90, 20}), 0, 100);
  for (const MicroBatch& item : plan.items) EXPECT_TRUE(item.tokens <= 100 || item.samples == 1);
  expect_covers(plan);
}

TEST(PlanTest, CoversEveryCountAndSize) {
  for (int64_t samples = 1; samples < 20; ++samples)
    for (int64_t size = 0; size < 22; ++size) {
      std::vector<int64_t> lengths(static_cast<size_t>(samples));
      std::iota(lengths.begin(), lengths.end(), 1);
      expect_covers(make_plan(offsets_of(lengths), size, 8));
    }
}

TEST(PlanTest, TargetKeepsStagesBusy) {
  EXPECT_EQ(choose_target_tokens(1000, 1, 512), 512);
  EXPECT_EQ(choose_target_tokens(5, 1, 512), 5);
  EXPECT_EQ(choose_target_tokens(1, 8, 512), 1);
  const int64_t target = choose_target_tokens(3200, 4, 512);
  EXPECT_GE((3200 + target - 1) / target, 15);  // at least five micro-batches for each step of the fill
}

}  // namespace
}  // namespace lfm2
