// Predicted times of scoring against sums by hand, and the chosen layout against all others.
#include "stage/planning/scoring_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "stage/planning/block_times.h"
#include "support/machine_costs.h"

namespace lfm2::test {
namespace {

class ScoringForecastTest : public testing::Test {
 protected:
  ScoringDemand demand(int64_t stages, int64_t replicas = 1) const {
    ScoringDemand demand = demand_on(machine_, config_, {.stages = stages, .replicas = replicas});
    demand.length = 32;
    demand.results.positions = Positions::kNone;
    return demand;
  }
  // The seconds of `tokens` tokens in all blocks, without results: the last feed-forward has no rows then.
  double seconds_of(double tokens) const {
    const BlockKinds kinds = block_kinds(config_);
    double sum = 0;
    for (size_t block = 0; block < kinds.kind_of.size(); ++block) {
      const bool unpruned = static_cast<int64_t>(block) == 2 * 4;
      const double factor = unpruned ? 9 : static_cast<double>(kinds.kind_of[block] + 1);
      sum += factor * (made_.fixed + made_.per_token * tokens);
    }
    return sum;
  }
  ScoringForecast forecast(const ScoringDemand& demand, int64_t samples) const {
    return forecast_scoring(machine_, config_, demand, samples);
  }

  const ModelConfig config_ = small_model();
  const MadeUpBlock made_;
  MachineCosts machine_ = made_up_costs(config_);
};

TEST_F(ScoringForecastTest, OneRankTakesTheSumOfItsMicroBatches) {
  ScoringDemand one = demand(1);
  one.micro_batch = 4;
  const ScoringForecast found = forecast(one, 10);  // 4, 4 and 2 samples
  EXPECT_EQ(found.batches.micro_batches, 3);
  EXPECT_NEAR(found.seconds, 2 * seconds_of(128) + seconds_of(64), 1e-9);
  EXPECT_NEAR(found.idle_share(), 0, 1e-9);
  EXPECT_TRUE(found.fits);
}

TEST_F(ScoringForecastTest, TwoStagesFillAndDrain) {
  ScoringDemand two = demand(2);
  two.micro_batch = 1;
  machine_.links = {{"same host", 1e15, 0}};
  const ScoringForecast found = forecast(two, 8);
  const std::vector<ReplayedSpan>& spans = found.timeline;
  ASSERT_EQ(spans.size(), 16u);
  // The slower stage works all the time; the other one adds its first or its last micro-batch.
  const double both = seconds_of(32), slow = *std::max_element(found.busy.begin(), found.busy.end()) / 8;
  EXPECT_NEAR(found.seconds, 8 * slow + both - slow, 1e-9);
  EXPECT_NEAR(found.busy[0] + found.busy[1], 8 * both, 1e-9);
  EXPECT_NEAR(found.idle_share(), 1 - 4 * both / found.seconds, 1e-9);
  // A link that is slower than the stages decides.
  machine_.links = {{"same host", 1e5, 1e-3}};
  EXPECT_GT(forecast(two, 8).seconds, 8 * 32 * 64 * 4 / 1e5);
}

TEST_F(ScoringForecastTest, ReplicasShareTheSamplesAndPruningSavesTime) {
  ScoringDemand one = demand(1), two = demand(1, 2);
  EXPECT_NEAR(forecast(two, 4096).seconds, forecast(one, 4096).seconds / 2, 0.02 * forecast(one, 4096).seconds);
  one.results.positions = Positions::kLast;
  const double last = forecast(one, 4096).seconds;
  one.results.positions = Positions::kAll;
  EXPECT_LT(last, 0.9 * forecast(one, 4096).seconds);
}

TEST_F(ScoringForecastTest, LongJobsAreExtrapolated) {
  ScoringDemand two = demand(2);
  two.micro_batch = 1;
  const double half = forecast(two, 4000).seconds, whole = forecast(two, 64000).seconds;
  EXPECT_NEAR(whole, 16 * half, 0.01 * whole);
}

TEST_F(ScoringForecastTest, MemoryThatIsTooSmall) {
  machine_.memory_bytes = 1000;
  EXPECT_FALSE(forecast(demand(2), 64).fits);
  EXPECT_FALSE(forecast_layouts(machine_, config_, demand(1), 64, 4).front().fits);
}

TEST_F(ScoringForecastTest, SeveralStagesNeedALink) {
  machine_.links.clear();
  EXPECT_NO_THROW(forecast(demand(1), 64));
  try {
    forecast(demand(2), 64);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
  }
}

TEST_F(ScoringForecastTest, AssumptionsAreNamed) {
  EXPECT_TRUE(assumptions(machine_, {.stages = 4}).empty());
  EXPECT_EQ(assumptions(machine_, {.stages = 2, .replicas = 4}).size(), 1u);
  EXPECT_EQ(assumptions(machine_, {.stages = 6}).size(), 2u);
  machine_.links.push_back({kOtherHost, 1e9, 1e-4});
  EXPECT_EQ(assumptions(machine_, {.stages = 6}).size(), 1u);
  EXPECT_GT(transfer_cost(machine_, config_, {.stages = 6}).per_token,
            transfer_cost(machine_, config_, {.stages = 2}).per_token);
}

// All cuts of `blocks` blocks into `parts` parts, as counts of layers.
void for_each_cut(int64_t blocks, int64_t parts, std::vector<double>& counts, const std::function<void()>& each) {
  if (parts == 1) {
    counts.push_back(static_cast<double>(blocks) / 2);
    each();
    counts.pop_back();
    return;
  }
  for (int64_t first = 1; first <= blocks - (parts - 1); ++first) {
    counts.push_back(static_cast<double>(first) / 2);
    for_each_cut(blocks - first, parts - 1, counts, each);
    counts.pop_back();
  }
}

// Two ranks as two stages, of one or two pieces, with every cut and many micro-batches; and as two replicas.
TEST_F(ScoringForecastTest, TheChoiceIsWithinFivePercentOfTheBest) {
  constexpr int64_t kSamples = 24;
  for (const double fixed : {0.02e-3, 0.5e-3}) {
    machine_ = made_up_costs(config_, {.fixed = fixed});
    double best_of_stages = std::numeric_limits<double>::infinity(), best = best_of_stages;
    for (const int64_t micro_batch : {1, 2, 3, 4, 6, 8, 12}) {
      ScoringDemand replicas = demand(1, 2), stages = demand(2);
      replicas.micro_batch = stages.micro_batch = micro_batch;
      best = std::min(best, forecast(replicas, kSamples).seconds);
      for (const int64_t pieces : {1, 2}) {
        stages.virtual_stages = pieces;
        for_each_cut(2 * config_.layers, 2 * pieces, stages.layer_counts,
                     [&] { best_of_stages = std::min(best_of_stages, forecast(stages, kSamples).seconds); });
      }
    }
    best = std::min(best, best_of_stages);
    const std::vector<ScoringForecast> chosen = forecast_layouts(machine_, config_, demand(1), kSamples, 2);
    ASSERT_EQ(chosen.size(), 2u);
    EXPECT_LE(chosen.front().seconds, 1.05 * best) << fixed;
    const ScoringForecast& pipeline = chosen[chosen[0].demand.stages == 2 ? 0 : 1];
    EXPECT_LE(pipeline.seconds, 1.05 * best_of_stages) << fixed;
  }
}

TEST_F(ScoringForecastTest, OptionsOfALayout) {
  ScoringDemand two = demand(2, 2);
  two.virtual_stages = 0;
  EXPECT_EQ(layout_options(two), "--replicas 2 --virtual-stages 0");
  EXPECT_EQ(layout_options(demand(1)), "none");
}

TEST(BlockTimesTest, LengthsAndCachedTokensAreInterpolated) {
  const ModelConfig config = small_model();
  MachineCosts machine = made_up_costs(config);
  for (HostCosts& host : machine.hosts) {
    for (CostCurve& curve : host.samples[1].blocks)
      for (double& seconds : curve.seconds) seconds *= 3;
    for (CostCurve& curve : host.steps[1].blocks)
      for (double& seconds : curve.seconds) seconds *= 5;
  }
  const BlockTimes times(machine, config, 1);
  const auto of_length = [&](int64_t length) {
    return times.of(0, BlockTimes::MicroBatchRows{.length = length, .tokens = 64, .kept = 64, .rows = 64});
  };
  EXPECT_NEAR(of_length(272), 2 * of_length(32), 1e-12);  // half way from 32 to 512
  EXPECT_NEAR(of_length(4096), 3 * of_length(32), 1e-12);
  EXPECT_NEAR(of_length(1), of_length(32), 1e-12);
  const auto of_cached = [&](double cached) {
    return times.of(0, BlockTimes::StepRows{.decoding = 4, .cached = cached, .rows = 4});
  };
  EXPECT_NEAR(of_cached(272), 3 * of_cached(32), 1e-12);
  EXPECT_DOUBLE_EQ(times.head(0), 0);
  EXPECT_NEAR(times.head(512), 2 * times.head(256), 1e-12);
}

}  // namespace
}  // namespace lfm2::test
