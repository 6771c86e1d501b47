// Sizes of micro-batches and cuts that follow from costs.
#include "stage/scoring/planning/choose.h"

#include <gtest/gtest.h>

#include "stage/model/partition.h"
#include "stage/scoring/planning/measure.h"
#include "stage/scoring/planning/replay.h"
#include "stage/shards/shard_reader.h"
#include "support/shards.h"

namespace lfm2 {
namespace {

// What the jobs of a CPU and of a GPU with several stages say of long samples.
constexpr MicroBatches::Size kCpuSize{.tokens = kMaxCpuTarget, .smallest_part = kMinCpuPart, .part = kMaxCpuPart},
    kCudaSize{.tokens = kMaxMeasuredTarget, .smallest_part = kMinCudaPart},
    kGrowingSize{.tokens = kMaxMeasuredTarget, .smallest_part = kMinCudaPart, .growth = 2.5e-5};

PipelineCosts pipeline_of(std::vector<StageTime> stages) {
  return {.shape = {.stages = std::ssize(stages)}, .virtual_stages = std::move(stages), .transfer = {}};
}

TEST(BestTargetTokensTest, WeighsTheFillAgainstTheFixedCost) {
  // t(T) = a + b T over S stages and N = tokens / T items: (N + S - 1) t is least near N² = (S - 1) b tokens / a.
  const auto best = [](std::vector<StageTime> stages, int64_t tokens, int64_t length) {
    const auto count = std::ssize(stages);
    MicroBatches::Size size = kCudaSize;
    if (count == 1) size.smallest_part = 0;
    return choose(pipeline_of(std::move(stages)), {.stages = count, .tokens = tokens, .length = length, .size = size})
        .target_tokens;
  };
  const int64_t target = best({4, {.fixed = 0.5e-3, .per_token = 1e-6}}, 32768, 32);
  const double items = std::sqrt(3 * 1e-6 * 32768 / 0.5e-3);
  EXPECT_NEAR(static_cast<double>(target), 32768 / items, 0.15 * 32768 / items);
  EXPECT_EQ(target % 32, 0);
  // No fixed cost: as small as a sample. Hardly another cost: as large as allowed.
  EXPECT_EQ(best({4, {.fixed = 0, .per_token = 1e-6}}, 32768, 32), 32);
  EXPECT_EQ(best({{.fixed = 1, .per_token = 1e-6}}, 1 << 20, 32), kMaxMeasuredTarget);
  // The slowest stage counts; a sample longer than allowed goes alone, or in parts where there are several stages.
  EXPECT_EQ(best({{.fixed = 0, .per_token = 1e-9}, {.fixed = 1, .per_token = 0}}, 100, 10), 100);
  EXPECT_EQ(best({{.fixed = 1, .per_token = 1e-6}}, 100000, 50000), 50000);
  EXPECT_LE(best({4, {.fixed = 0.5e-3, .per_token = 1e-6}}, 100000, 50000), kMaxMeasuredTarget);
}

// Where a hot chip makes the large size slower than four times the small one, a micro-batch still costs what a token
// does.
TEST(LineThroughTest, NoMicroBatchIsFree) {
  constexpr TimedSizes kSizes{.small = 1024, .large = 4096};
  const StageTime line = line_through(kSizes, 0.2e-3, 1.2e-3, 4.2e-3),
                  hot = line_through(kSizes, 0.2e-3, 3e-3, 12.1e-3);
  EXPECT_NEAR(line.fixed, 0.2e-3, 1e-9);
  EXPECT_NEAR(line.per_token, 3e-3 / 3072, 1e-9);
  EXPECT_NEAR(line_through(kSizes, 0.2e-3, 2e-3, 5e-3).fixed, 1e-3, 1e-9);  // weights that one token does not read
  EXPECT_DOUBLE_EQ(hot.fixed, 0.2e-3);
  EXPECT_NEAR(hot.seconds(4096), 12.1e-3, 1e-9);
  EXPECT_GE(line_through(kSizes, 2e-3, 1.5e-3, 1e-3).per_token, 0);
  MicroBatches::Size size = kCudaSize;
  size.smallest_part = 0;
  EXPECT_GE(choose(pipeline_of({hot}), {.stages = 1, .tokens = 32768, .length = 32, .size = size, .result_bytes = 8192})
                .target_tokens,
            4096);
}

// One stage is busy all the time, so what is left to choose is how much is handed out at the end.
TEST(BestTargetTokensTest, WeighsTheLastResultsAgainstTheFixedCost) {
  const auto best = [](double result_bytes) {
    MicroBatches::Size size = kCudaSize;
    size.smallest_part = 0;
    return choose(pipeline_of({{.fixed = 1e-3, .per_token = 5e-6}}),
                  {.stages = 1, .tokens = 1 << 18, .length = 32, .size = size, .result_bytes = result_bytes})
        .target_tokens;
  };
  EXPECT_EQ(best(0), kMaxMeasuredTarget);
  // The logits of one position of 32: seven micro-batches, of which the last is a 16th of another.
  EXPECT_EQ((1 << 18) / best(8192), 6);
  EXPECT_NEAR(static_cast<double>((1 << 18) % best(8192)) / static_cast<double>(best(8192)), 1.0 / 16, 0.01);
  const int64_t some = best(95e3), many = best(400e3);
  EXPECT_LT(some, kMaxMeasuredTarget);
  EXPECT_LT(many, some);  // results take longer than computing: they must begin early
}

// Four pipelines of a host, each with 256 samples, hand out their logits at the same time.
TEST(BestTargetTokensTest, PipelinesOfAHostShareItsMemory) {
  const auto best = [](int64_t pipelines_on_host) {
    MicroBatches::Size size = kCudaSize;
    size.smallest_part = 0;
    return choose(pipeline_of({{.fixed = 3.2e-3, .per_token = 4.4e-6}}), {.stages = 1,
                                                                          .tokens = 256 * 32,
                                                                          .length = 32,
                                                                          .size = size,
                                                                          .result_bytes = 8192,
                                                                          .pipelines_on_host = pipelines_on_host})
        .target_tokens;
  };
  EXPECT_EQ(best(1), 256 * 32);
  EXPECT_EQ(best(2), best(1));
  EXPECT_LT(best(4), best(1));
}

// Where every micro-batch takes a second, the seconds say how many there are: as many as MicroBatches makes.
TEST(BestTargetTokensTest, SeesTheMicroBatchesThatAreCut) {
  constexpr int64_t kStages = 4, kSamples = 7;
  const BlockCosts costs{
      .blocks = {kStages * kBlocksOfLayer, {.fixed = 0.5, .per_token = 0}}, .head = {}, .transfer = {}};
  for (const MicroBatches::Size& machine : {kCpuSize, kCudaSize, kGrowingSize})
    for (const int64_t length : {1, 32, 63, 64, 129, 400, 512, 513, 700, 1023, 1024, 1500, 4096, 20000})
      for (const int64_t largest : {machine.smallest_part, int64_t{512}, machine.tokens}) {
        SampleOffsets offsets;
        for (int64_t sample = 0; sample < kSamples; ++sample) offsets.push_back(offsets.back() + length);
        MicroBatches::Size size = machine;
        size.tokens = largest;
        const PipelineChoice choice = choose(costs, {.stages = kStages,
                                                     .tokens = kSamples * length,
                                                     .length = length,
                                                     .size = size,
                                                     .pieces = 1,
                                                     .balance = false});
        size.tokens = choice.target_tokens;
        const MicroBatches cut(offsets, {}, size);
        EXPECT_DOUBLE_EQ(choice.seconds, static_cast<double>(cut.plan().micro_batches + kStages - 1))
            << length << " " << largest;
      }
}

// The smaller the better: samples go in the smallest parts that the machine allows, and as a whole where a part would
// be smaller.
TEST(BestTargetTokensTest, PartsAreThoseOfTheMachine) {
  const auto best = [](int64_t length, const MicroBatches::Size& size) {
    return choose(pipeline_of({4, {.fixed = 0, .per_token = 1e-6}}),
                  {.stages = 4, .tokens = 8 * length, .length = length, .size = size})
        .target_tokens;
  };
  EXPECT_EQ(best(384, kCpuSize), 64);
  EXPECT_EQ(best(384, kCudaSize), 384);
  EXPECT_EQ(best(700, kCudaSize), 700);
  EXPECT_EQ(best(1024, kCudaSize), 512);
  EXPECT_EQ(best(127, kCpuSize), 127);
}

// Stages on one device compute in turn: more micro-batches do not help.
TEST(BestTargetTokensTest, RanksOfOneDeviceWantLargeMicroBatches) {
  const auto best = [](const std::vector<int>& devices) {
    PipelineCosts costs = pipeline_of({4, {.fixed = 0.1e-3, .per_token = 1e-6}});
    costs.transfer = {.fixed = 20e-6, .per_token = 1e-9};
    costs.devices = devices;
    return choose(costs, {.stages = 4, .tokens = 32768, .length = 32, .size = kCudaSize, .devices = devices})
        .target_tokens;
  };
  EXPECT_GE(best({0, 0, 0, 0}), 4096);  // not the largest: the results of the last one are handed out at the end
  EXPECT_LT(best({0, 0, 1, 1}), best({0, 0, 0, 0}));
  EXPECT_LT(best({}), best({0, 0, 1, 1}));
}

// However long the job and however short the samples: the search is bounded, and leaves no wide gaps.
TEST(CandidateTargetsTest, AreFewAndCloseTogether) {
  for (const MicroBatches::Size& size : {kCpuSize, kCudaSize, kGrowingSize})
    for (const int64_t length : {1, 2, 32, 700, 20000, 128000})
      for (const int64_t samples : {1, 7, 1024, 1000000, 100000000}) {
        const PipelineJob job{.stages = 24, .tokens = samples * length, .length = length, .size = size};
        const std::vector<int64_t> targets = candidate_targets(job);
        ASSERT_FALSE(targets.empty());
        EXPECT_LE(targets.size(), kMaxCandidates) << length << " " << samples;
        for (size_t i = 1; i < targets.size(); ++i) {
          EXPECT_LT(targets[i], targets[i - 1]);
          // Few samples give few sizes: two of them are not one, and a whole one is not two parts.
          if (samples < 1000000 || (targets[i - 1] <= 8 * length && 8 * targets[i - 1] >= length)) continue;
          EXPECT_LE(static_cast<double>(targets[i - 1]), 1.34 * static_cast<double>(targets[i]))
              << length << " " << samples;
        }
        const bool whole = length < kMinCpuPart;
        EXPECT_GE(targets.back(), whole ? length : std::min(size.smallest_part, length));
        EXPECT_LE(targets.back(), length);
      }
}

// Measured layers and a measured head take the place of estimated ones; what goes on behind the last attention layer
// stays as estimated.
TEST(MeasuredCostsTest, KeepTheSharesOfTheEstimate) {
  ModelConfig config = ShardSet::open(test::golden_shards("mini-24", 4)).config();
  const BlockCosts estimated = estimate_costs(config, DType::kBf16, 0.25),
                   whole = estimate_costs(config, DType::kBf16, 0);
  std::vector<StageTime> thrice;
  for (const StageTime& block : whole.blocks) thrice.push_back({3 * block.fixed, 3 * block.per_token});
  const auto cut = static_cast<size_t>(kBlocksOfLayer * last_attention_layer(config));  // timed as it prunes tokens
  thrice[cut] = {3 * estimated.blocks[cut].fixed, 3 * estimated.blocks[cut].per_token};
  const BlockCosts found = measured_costs(config, DType::kBf16, 0.25, 0.5,
                                          {.blocks = thrice, .head = {.fixed = 7, .per_token = 6}, .transfer = {}});
  ASSERT_EQ(found.blocks.size(), whole.blocks.size());
  for (size_t block = 0; block < found.blocks.size(); ++block)
    EXPECT_NEAR(found.blocks[block].per_token, 3 * estimated.blocks[block].per_token, 1e-15);
  EXPECT_LT(found.blocks[cut + 1].per_token, 0.5 * found.blocks[cut - 1].per_token);  // feed-forwards around the cut
  EXPECT_DOUBLE_EQ(found.head.fixed, 7);
  EXPECT_DOUBLE_EQ(found.head.per_token, 0.5 * 6);
}

TEST(BlockKindsTest, OneBlockStandsForEachKind) {
  const ModelConfig config = ShardSet::open(test::golden_shards("mini-24", 4)).config();
  const BlockKinds kinds = block_kinds(config);
  ASSERT_EQ(std::ssize(kinds.kind_of), kBlocksOfLayer * config.layers);
  for (int64_t block = 0; block < kBlocksOfLayer * config.layers; ++block) {
    const int64_t example = kinds.examples.at(kinds.kind_of[static_cast<size_t>(block)]);
    ASSERT_EQ(example % kBlocksOfLayer, block % kBlocksOfLayer);
    const int64_t layer = block / kBlocksOfLayer, of = example / kBlocksOfLayer;
    if (block % kBlocksOfLayer != 0) {
      EXPECT_EQ(config.is_dense(of), config.is_dense(layer));
      continue;
    }
    EXPECT_EQ(config.layer_types[static_cast<size_t>(of)], config.layer_types[static_cast<size_t>(layer)]);
    EXPECT_EQ(of == last_attention_layer(config), layer == last_attention_layer(config));
  }
  EXPECT_LE(kinds.examples.size(), 5u);
  EXPECT_EQ(std::count(kinds.examples.begin(), kinds.examples.end(), 0), 0);
}

// What is not replayed of a long job follows from what is.
TEST(PipelineSecondsTest, ALongJobGoesOnAsItBegan) {
  const PipelineCosts costs{.shape = {.stages = 4, .pieces = 2},
                            .virtual_stages = std::vector<StageTime>(8, {.fixed = 0.5, .per_token = 0}),
                            .transfer = {}};
  EXPECT_NEAR(pipeline_seconds(costs, 10000, 1, 1), 10000 + 1.5, 1e-6);
  EXPECT_NEAR(pipeline_seconds(costs, 10, 1, 1), 10 + 1.5, 1e-9);
}

}  // namespace
}  // namespace lfm2
