// What is timed of a stage is what the job needs of it: attention at the depth of long samples, and of the layer that
// prunes tokens no more than these.
#include "stage/scoring/planning/measure.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lfm2::test
