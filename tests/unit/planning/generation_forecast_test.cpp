// Predicted times of generations against sums by hand.
#include "stage/planning/generation_forecast.h"

#include <gtest/gtest.h>

#include "stage/planning/block_times.h"
#include "stage/planning/timeline.h"
#include "support/golden.h"
#include "support/machine_costs.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class GenerationForecastTest : public testing::Test {
 protected:
  GenerationForecast forecast(int64_t stages, int64_t sequences, int64_t length, int64_t new_tokens) const {
    return forecast_generation(machine_, config_, demand(stages, sequences, length, new_tokens));
  }
  GenerationDemand demand(int64_t stages, int64_t sequences, int64_t length, int64_t new_tokens) const {
    return {.step = {.stages = stages}, .sequences = sequences, .length = length, .new_tokens = new_tokens};
  }
  // The seconds of a step in all blocks and the head.
  double step(const BlockTimes::StepRows& rows) const {
    const BlockTimes times(machine_, config_, 1);
    double sum = times.head(rows.rows);
    for (int64_t block = 0; block < 2 * config_.layers; ++block) sum += times.of(block, rows);
    return sum;
  }

  const ModelConfig config_ = small_model();
  MachineCosts machine_ = made_up_costs(config_);
};

TEST_F(GenerationForecastTest, OneSequenceTakesItsPromptAndItsSteps) {
  const GenerationForecast found = forecast(1, 1, 16, 5);
  EXPECT_EQ(found.steps, 5);
  const auto kept = static_cast<double>(std::min<int64_t>(16, tail_length(config_)));
  const double prompt = step({.prompts = 16, .kept = kept, .rows = 1, .length = 16}),
               decode = step({.decoding = 1, .cached = 20, .rows = 1});
  EXPECT_NEAR(found.seconds, prompt + 4 * decode, 1e-9);
  EXPECT_NEAR(found.first_token_seconds, prompt, 1e-9);
  EXPECT_NEAR(found.tokens_per_second(), 5 / found.seconds, 1e-9);
}

// Each token of a single sequence goes through the stages in turn.
TEST_F(GenerationForecastTest, StagesTakeTurnsForOneSequence) {
  machine_.links = {{"same host", 1e15, 0}};
  const GenerationForecast one = forecast(1, 1, 16, 8), three = forecast(3, 1, 16, 8);
  EXPECT_NEAR(three.seconds, one.seconds, 1e-9);
  EXPECT_NEAR(three.idle_share(), 2.0 / 3, 1e-6);
  machine_.links = {{"same host", 1e15, 2e-3}};
  EXPECT_NEAR(forecast(3, 1, 16, 8).seconds, one.seconds + 8 * 3 * 1e-3, 1e-6);
}

TEST_F(GenerationForecastTest, ManySequencesShareASteps) {
  const GenerationForecast one = forecast(1, 1, 16, 64), many = forecast(1, 64, 16, 64);
  EXPECT_EQ(many.largest_step, 64);
  EXPECT_GT(many.tokens_per_second(), 3 * one.tokens_per_second());
  // Every stage has a step in flight, so all are busy.
  const GenerationForecast piped = forecast(2, 64, 16, 64);
  EXPECT_EQ(piped.largest_step, 32);
  EXPECT_LT(piped.seconds, many.seconds);
  EXPECT_LT(piped.idle_share(), 0.3);
}

TEST_F(GenerationForecastTest, BalancedCutsAndReplicas) {
  GenerationDemand two = demand(2, 64, 16, 32);
  const double equal = forecast_generation(machine_, config_, two).seconds;
  two.balance = true;
  EXPECT_LE(forecast_generation(machine_, config_, two).seconds, 1.001 * equal);
  const std::vector<GenerationForecast> layouts = forecast_layouts(machine_, config_, demand(1, 64, 16, 32), 2);
  ASSERT_EQ(layouts.size(), 2u);
  EXPECT_LE(layouts[0].seconds, layouts[1].seconds);
  EXPECT_EQ(layout_options(two), "--balance");
}

TEST_F(GenerationForecastTest, LongJobsAreExtrapolated) {
  GenerationDemand few = demand(1, 48, 16, 8);
  few.step.max_sequences = 8;
  GenerationDemand many = few;
  many.sequences = 480;
  const GenerationForecast short_job = forecast_generation(machine_, config_, few),
                           long_job = forecast_generation(machine_, config_, many);
  EXPECT_NEAR(long_job.seconds, 10 * short_job.seconds, 0.05 * long_job.seconds);
  EXPECT_NEAR(long_job.idle_share(), 0, 1e-9);
}

// Few pages: sequences wait or are preempted, and the job takes longer.
TEST_F(GenerationForecastTest, ShortMemory) {
  const GenerationForecast roomy = forecast(1, 64, 64, 256);
  machine_.memory_bytes = roomy.memory_bytes / 2;
  const GenerationForecast tight = forecast(1, 64, 64, 256);
  EXPECT_TRUE(tight.fits);
  EXPECT_LT(tight.memory_bytes, roomy.memory_bytes);
  EXPECT_GT(tight.seconds, 1.05 * roomy.seconds);
  machine_.memory_bytes = 1 << 10;
  EXPECT_FALSE(forecast(1, 64, 64, 256).fits);
}

// A longer text takes more pages in layers of full attention alone.
TEST(GenerationForecastMemoryTest, OfLayersWithAWindow) {
  const ModelConfig config = parse_model_config(read_bytes(golden_dir() / "tiny-lfm3/config.json"), "config.json");
  const MachineCosts machine = made_up_costs(config);
  const auto bytes_of = [&](int64_t length) {
    return forecast_generation(machine, config, {.sequences = 2, .length = length, .new_tokens = 9, .page_size = 8})
        .memory_bytes;
  };
  const LayerRange full{2, 1};  // one of two such layers
  EXPECT_EQ(bytes_of(392) - bytes_of(192),
            2 * 2 * 25 * page_bytes(config, full, machine.compute, {.page_size = 8, .window = config.window}));
}

// An estimate of an H200 against what docs/performance.md has measured there.
TEST(EstimatedMachineTest, FourH200) {
  const ModelConfig config = parse_model_config(builtin_model_config("lfm2-8b-a1b"), "built-in");
  const MachineCosts machine = read_machine_costs(golden_dir() / "../bench/machines/h200-estimate.json", config);
  ScoringDemand four = demand_on(machine, config, {.stages = 4});
  four.length = 32;
  EXPECT_NEAR(1024 / forecast_scoring(machine, config, four, 1024).seconds, 16287, 0.1 * 16287);
  GenerationDemand one{.step = {.cuda = true}, .sequences = 1024, .length = 32, .new_tokens = 64};
  EXPECT_NEAR(forecast_generation(machine, config, one).tokens_per_second(), 91357, 0.1 * 91357);
}

TEST(TimelineTest, ShowsWhoComputesWhen) {
  const std::vector<ReplayedSpan> spans{{0, 0, 0, false, 0, 1},  {0, 0, 1, false, 1, 2},     {1, 0, 0, false, 1, 2},
                                        {1, 0, 0, true, 2, 2.5}, {1, 0, 1, false, 2.5, 3.5}, {1, 0, 1, true, 3.5, 4}};
  EXPECT_EQ(timeline_text(spans, {.stages = 2}, 8),
            "     0 0011....\n"
            "     1 ..00=11=\n"
            "       0      4 s\n");
  EXPECT_EQ(timeline_text({}, {.stages = 2}, 8), "");
}

}  // namespace
}  // namespace lfm2::test
