// When the last micro-batch goes through the last layers in two parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "stage/scoring/planning/choose.h"
#include "stage/scoring/planning/replay.h"

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
PipelineCosts with_late_parts() {
  PipelineCosts costs = costs_of_one_rank();
  costs.layer_shares.assign(21, 1.0 / 24);
  return costs;
}

TEST(LatePartsTest, SaveTheWeightsOfTheLayersInFront) {
  const PipelineCosts costs = costs_of_one_rank();
  const PipelineJob job = job_of_one_rank(256, 65536 * sizeof(float), 4);
  const PipelineChoice chosen = choose(with_late_parts(), job);
  ASSERT_GT(chosen.late.samples, 0);
  EXPECT_EQ(chosen.target_tokens, 8192);
  const auto second = static_cast<double>(chosen.late.samples);
  EXPECT_GE(chosen.late.layer, 1);
  EXPECT_LE(chosen.late.layer, 21);
  // By hand: all layers once, the last ones' weights again, and what the second part leaves of the results of the
  // first.
  const double behind = static_cast<double>(24 - chosen.late.layer) / 24, result = 65536 * sizeof(float) / 12.5e9;
  const double part = behind * (4e-3 + second * 32 * 32.5e-3 / 8192);
  const double by_hand = 36.5e-3 + behind * 4e-3 + std::max(0.0, (256 - second) * result - part) + second * result;
  EXPECT_NEAR(chosen.seconds, by_hand, 1e-6);
  // In one micro-batch, and with a smaller one behind it:
  EXPECT_LT(chosen.seconds, 36.5e-3 + 256 * result);
  const int64_t target = choose(costs, job).target_tokens;
  EXPECT_LT(chosen.seconds + 1e-3,
            pipeline_seconds(
                {.shape = {}, .virtual_stages = costs.virtual_stages, .transfer = {}, .result_seconds = result / 32},
                (8192 + target - 1) / target, target, 8192 - (8192 + target - 1) / target * target + target));
}

TEST(LatePartsTest, AreForResultsThatTakeLong) {
  EXPECT_EQ(choose(with_late_parts(), job_of_one_rank(256, 8, 4)).late.samples, 0);
  EXPECT_EQ(choose(with_late_parts(), job_of_one_rank(1, 65536 * sizeof(float), 4)).late.samples, 0);
  EXPECT_EQ(choose(with_late_parts(), job_of_one_rank(1 << 20, 65536 * sizeof(float), 1)).late.samples, 0);
}

}  // namespace
}  // namespace lfm2
