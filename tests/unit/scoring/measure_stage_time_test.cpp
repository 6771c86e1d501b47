// What is timed of a stage is what the job needs of it: attention at the depth of long samples, and of the layer that
// cuts the tails no more than these.
#include "stage/scoring/measure_stage_time.h"

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

}  // namespace
}  // namespace lfm2::test
