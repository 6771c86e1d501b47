// When the last micro-batch goes through the last layers in two parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "stage/scoring/cost_model.h"

namespace lfm2 {
namespace {

// On one of four H200 that hand out results of 256 samples of 32 tokens at the same time, by the costs that were
// measured.
PipelineCosts costs_of_one_rank() {
  return {.shape = {}, .virtual_stages = {{.fixed = 4e-3, .per_token = 32.5e-3 / 8192}}, .transfer = {}};
}
PipelineJob job_of_one_rank(int64_t samples, double result_bytes, int64_t pipelines) {
  return {.tokens = samples * 32,
          .length = 32,
          .size = {.tokens = 65536},
          .result_bytes = result_bytes / 32,
          .pipelines_on_host = pipelines};
}
const std::vector<double> kEqualLayers(24, 1.0 / 24);

TEST(LatePartsTest, SaveTheWeightsOfTheLayersInFront) {
  const PipelineCosts costs = costs_of_one_rank();
  const PipelineJob job = job_of_one_rank(256, 65536 * sizeof(float), 4);
  const std::optional<LateChoice> late = choose_late_parts(costs, job, kEqualLayers, 21);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->target_tokens, 8192);
  const auto second = static_cast<double>(late->parts.samples);
  EXPECT_GE(late->parts.layer, 1);
  EXPECT_LE(late->parts.layer, 21);
  // By hand: all layers once, the last ones' weights again, and what the second part leaves of the results of the
  // first.
  const double behind = static_cast<double>(24 - late->parts.layer) / 24, result = 65536 * sizeof(float) / 12.5e9;
  const double part = behind * (4e-3 + second * 32 * 32.5e-3 / 8192);
  const double by_hand = 36.5e-3 + behind * 4e-3 + std::max(0.0, (256 - second) * result - part) + second * result;
  EXPECT_NEAR(late->seconds, by_hand, 1e-6);
  // In one micro-batch, and with a smaller one behind it:
  EXPECT_LT(late->seconds, 36.5e-3 + 256 * result);
  const int64_t target = best_target_tokens(costs, job);
  EXPECT_LT(late->seconds + 1e-3,
            pipeline_seconds(
                {.shape = {}, .virtual_stages = costs.virtual_stages, .transfer = {}, .result_seconds = result / 32},
                (8192 + target - 1) / target, target, 8192 - (8192 + target - 1) / target * target + target));
}

TEST(LatePartsTest, AreForResultsThatTakeLong) {
  EXPECT_FALSE(choose_late_parts(costs_of_one_rank(), job_of_one_rank(256, 8, 4), kEqualLayers, 21));
  EXPECT_FALSE(choose_late_parts(costs_of_one_rank(), job_of_one_rank(1, 65536 * sizeof(float), 4), kEqualLayers, 21));
  EXPECT_FALSE(
      choose_late_parts(costs_of_one_rank(), job_of_one_rank(1 << 20, 65536 * sizeof(float), 1), kEqualLayers, 21));
}

}  // namespace
}  // namespace lfm2
