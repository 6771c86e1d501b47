// What is timed of a stage is what the job needs of it: attention at the depth of long samples, and of the layer that
// prunes tokens no more than these.
#include "stage/scoring/planning/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/golden.h"
#include "support/loaded_stage.h"

namespace lfm2::test {
namespace {

TEST(MeasureStageTimeTest, LongSamplesAndTails) {
  const std::string golden_case = "mini-24";
  const int64_t cut = last_attention_layer(ShardSet::open(golden_shards(golden_case, 4)).config());
  LoadedStage loaded(golden_case, {cut, 1}, DType::kF32);
  constexpr TimedSizes kSizes{.small = 32, .large = 64};
  const auto seconds = [&](TimedSamples samples) {
    return measure_stage_time(loaded.backend, loaded.stage(), DType::kF32, samples, kSizes).seconds(64);
  };
  const double near = seconds({.length = 64}), far = seconds({.length = 20000});
  EXPECT_GT(near, 0);
  EXPECT_GT(far, 3 * near);  // 10 000 keys for each token
  EXPECT_LT(seconds({.length = 20000, .last_positions = true}), 0.5 * far);
  EXPECT_LT(seconds({.length = 1}), far);
}

// Steps of a generation read what is cached of every sequence, up to the room that the timing gives its caches.
TEST(MeasureStageTimeTest, StepsOverCachedSequences) {
  const std::string golden_case = "mini-24";
  const int64_t attention = last_attention_layer(ShardSet::open(golden_shards(golden_case, 4)).config());
  for (const int64_t layer : {attention, attention + 1}) {
    LoadedStage loaded(golden_case, {layer, 1}, DType::kF32);
    const auto seconds = [&](int64_t cached) {
      constexpr TimedSizes kSizes{.small = 8, .large = 16};
      return measure_stage_time(loaded.backend, loaded.stage(), DType::kF32, {.cached = cached}, kSizes).seconds(16);
    };
    const double near = seconds(0), far = seconds(10000), farther = seconds(1000000);
    EXPECT_GT(near, 0);
    EXPECT_GT(far, layer == attention ? 3 * near : 0);
    EXPECT_LT(farther, 20 * far);  // it is no more than 16 383
  }
}

TEST(MeasureStageTimeTest, TheHeadTakesLongerForMoreRows) {
  LoadedStage loaded("mini-24", {23, 1}, DType::kF32);
  const StageTime head = measure_head_time(loaded.backend, loaded.stage(), DType::kF32);
  EXPECT_GT(head.seconds(1), 0);
  EXPECT_GT(head.per_token, 0);
}

TEST(OtherWeightsTest, EveryByteIsRead) {
  LoadedStage loaded("mini-24", {0, 1}, DType::kF32);
  constexpr int64_t kColumns = 1024, kRows = 300;
  const OtherWeights others(loaded.backend, kColumns * kRows * sizeof(float));
  others.read(loaded.backend.ops());
  ASSERT_EQ(others.product().numel(), kRows);
  for (int64_t row = 0; row < kRows; ++row) EXPECT_EQ(others.product().as<const float>()[row], kColumns);  // all are 1
}

TEST(OtherWeightsTest, RanksOfAHostShareTheModelAndTheCaches) {
  const ModelConfig config = ShardSet::open(golden_shards("mini-24", 4)).config();
  const size_t all = other_weight_bytes(config, DType::kF32, 1);
  EXPECT_GT(all, static_cast<size_t>(config.vocab * config.hidden) * sizeof(float));
  EXPECT_EQ(other_weight_bytes(config, DType::kF32, 4), all / 4);
  ModelConfig large = config;
  large.vocab = int64_t{1} << 30;
  EXPECT_EQ(other_weight_bytes(large, DType::kF32, 2), size_t{256} << 20);
}

// A layer that fits the caches takes longer if they are full of other weights. Of several attempts one suffices, since
// other work on the machine fills them as well.
TEST(OtherWeightsTest, TheCachesAreFullOfThem) {
  LoadedStage loaded("mini-24", {1, 1}, DType::kF32);
  const OtherWeights others(loaded.backend, size_t{256} << 20);  // more than most processors' caches
  const std::vector<int64_t> sizes{1};
  double largest = 0;
  for (int attempt = 0; attempt < 5 && largest < 1.5; ++attempt) {
    const auto seconds = [&](const OtherWeights* read) {
      return measure_stage_curve(loaded.backend, loaded.stage(), DType::kF32, {.cached = 32}, sizes, {.others = read})
          .seconds.front();
    };
    largest = std::max(largest, seconds(&others) / seconds(nullptr));
  }
  EXPECT_GT(largest, 1.5);
}

}  // namespace
}  // namespace lfm2::test
