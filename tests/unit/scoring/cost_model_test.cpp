// Sizes of micro-batches and cuts that follow from costs.
#include "stage/scoring/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/error.h"
#include "stage/model/partition.h"
#include "stage/scoring/plan.h"
#include "stage/shards/shard_reader.h"
#include "support/shards.h"

namespace lfm2 {
namespace {

// What the jobs of a CPU and of a GPU with several stages say of long samples.
constexpr MicroBatches::Size kCpuSize{.tokens = kMaxCpuTarget, .smallest_part = kMinCpuPart, .part = kMaxCpuPart},
    kCudaSize{.tokens = kMaxMeasuredTarget, .smallest_part = kMinCudaPart},
    kGrowingSize{.tokens = kMaxMeasuredTarget, .smallest_part = kMinCudaPart, .growth = 2.5e-5};

// Layers whose two blocks take equally long.
std::vector<StageTime> blocks_of(const std::vector<StageTime>& layers) {
  std::vector<StageTime> blocks;
  for (const StageTime& layer : layers)
    blocks.insert(blocks.end(), kBlocksOfLayer, {.fixed = layer.fixed / 2, .per_token = layer.per_token / 2});
  return blocks;
}

PipelineCosts pipeline_of(std::vector<StageTime> stages) {
  return {.shape = {.stages = std::ssize(stages)}, .virtual_stages = std::move(stages), .transfer = {}};
}

TEST(BestTargetTokensTest, WeighsTheFillAgainstTheFixedCost) {
  // t(T) = a + b T over S stages and N = tokens / T items: (N + S - 1) t is least near N² = (S - 1) b tokens / a.
  const auto best = [](std::vector<StageTime> stages, int64_t tokens, int64_t length) {
    const auto count = std::ssize(stages);
    MicroBatches::Size size = kCudaSize;
    if (count == 1) size.smallest_part = 0;
    return best_target_tokens(pipeline_of(std::move(stages)),
                              {.stages = count, .tokens = tokens, .length = length, .size = size});
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

// One stage is busy all the time, so what is left to choose is how much is handed out at the end.
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

TEST(BestTargetTokensTest, WeighsTheLastResultsAgainstTheFixedCost) {
  const auto best = [](double result_bytes) {
    MicroBatches::Size size = kCudaSize;
    size.smallest_part = 0;
    return best_target_tokens(
        pipeline_of({{.fixed = 1e-3, .per_token = 5e-6}}),
        {.stages = 1, .tokens = 1 << 18, .length = 32, .size = size, .result_bytes = result_bytes});
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
    return best_target_tokens(pipeline_of({{.fixed = 3.2e-3, .per_token = 4.4e-6}}),
                              {.stages = 1,
                               .tokens = 256 * 32,
                               .length = 32,
                               .size = size,
                               .result_bytes = 8192,
                               .pipelines_on_host = pipelines_on_host});
  };
  EXPECT_EQ(best(1), 256 * 32);
  EXPECT_EQ(best(2), best(1));
  EXPECT_LT(best(4), best(1));
}

// Where every micro-batch takes a second, the seconds say how many there are: as many as MicroBatches makes.
TEST(BestTargetTokensTest, SeesTheMicroBatchesThatAreCut) {
  constexpr int64_t kStages = 4, kSamples = 7;
  const BlockCosts costs{.blocks = blocks_of({kStages, {.fixed = 1, .per_token = 0}}), .head = {}, .transfer = {}};
  for (const MicroBatches::Size& machine : {kCpuSize, kCudaSize, kGrowingSize})
    for (const int64_t length : {1, 32, 63, 64, 129, 400, 512, 513, 700, 1023, 1024, 1500, 4096, 20000})
      for (const int64_t largest : {machine.smallest_part, int64_t{512}, machine.tokens}) {
        SampleOffsets offsets;
        for (int64_t sample = 0; sample < kSamples; ++sample) offsets.push_back(offsets.back() + length);
        MicroBatches::Size size = machine;
        size.tokens = largest;
        const PipelineChoice choice = choose_micro_batch(
            costs, {.stages = kStages, .tokens = kSamples * length, .length = length, .size = size}, 1, false);
        size.tokens = choice.target_tokens;
        const MicroBatches cut(offsets, {}, {0, kSamples}, size);
        EXPECT_DOUBLE_EQ(choice.seconds, static_cast<double>(cut.plan().micro_batches + kStages - 1))
            << length << " " << largest;
      }
}

// The smaller the better: samples go in the smallest parts that the machine allows, and as a whole where a part would
// be smaller.
TEST(BestTargetTokensTest, PartsAreThoseOfTheMachine) {
  const auto best = [](int64_t length, const MicroBatches::Size& size) {
    return best_target_tokens(pipeline_of({4, {.fixed = 0, .per_token = 1e-6}}),
                              {.stages = 4, .tokens = 8 * length, .length = length, .size = size});
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
    return best_target_tokens(costs,
                              {.stages = 4, .tokens = 32768, .length = 32, .size = kCudaSize, .devices = devices});
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

// 24 layers on four ranks, each layer with a fixed cost: the fill costs less with more pieces, so that larger
// micro-batches pay.
TEST(ChoosePipelineTest, PiecesMicroBatchAndCutGoTogether) {
  BlockCosts costs{.blocks = blocks_of({24, {.fixed = 0.1e-3, .per_token = 0.2e-6}}),
                   .head = {},
                   .transfer = {.fixed = 20e-6, .per_token = 60e-9}};
  const auto job_of = [](int64_t stages, int64_t tokens, int64_t samples = 0) {
    return PipelineJob{
        .stages = stages, .tokens = tokens, .length = 32, .size = {.samples = samples, .tokens = kMaxMeasuredTarget}};
  };
  const PipelineJob job = job_of(4, 32768);
  const PipelineChoice one = choose_micro_batch(costs, job, 1, false), chosen = choose_pipeline(costs, job);
  EXPECT_GT(chosen.shape.pieces, 1);
  EXPECT_LT(chosen.seconds, 0.95 * one.seconds);
  EXPECT_GT(chosen.target_tokens, one.target_tokens);
  for (const LayerRange& range : chosen.cut)
    EXPECT_EQ(end_block(range) - first_block(range), 48 / chosen.shape.virtual_stages());
  // Where a rank is alone, or has one layer, or the job is long, there is nothing to win.
  EXPECT_EQ(choose_pipeline(costs, job_of(1, 32768)).shape.pieces, 1);
  EXPECT_EQ(choose_pipeline(costs, job_of(24, 32768)).shape.pieces, 1);
  EXPECT_EQ(choose_pipeline(costs, job_of(4, 32768000)).shape.pieces, 1);
  // The size of micro-batch may be given.
  const PipelineChoice given = choose_pipeline(costs, job_of(4, 32768, 10));
  EXPECT_EQ(given.target_tokens, 320);
  // One slow layer: the cut is balanced.
  for (const size_t block : {10, 11}) costs.blocks[block].per_token *= 8;
  const PipelineChoice balanced = choose_pipeline(costs, job);
  EXPECT_NE(balanced.cut, equal_partition(24, balanced.shape.virtual_stages()));
  EXPECT_LT(balanced.seconds, 0.9 * choose_micro_batch(costs, job, balanced.shape.pieces, false).seconds);
}

// Attention over a text of 65 536 tokens makes five of 24 token mixers take ten times as long as the others. One rank
// of four must have two of them, so it gets few others, which takes a move of a layer past several stages.
TEST(ChoosePipelineTest, HeavyLayersAreSharedAmongRanks) {
  BlockCosts costs{.blocks = blocks_of({24, {.fixed = 0.12e-3, .per_token = 0.2e-6}}),
                   .head = {},
                   .transfer = {.fixed = 20e-6, .per_token = 60e-9}};
  for (const size_t layer : {2, 6, 10, 14, 18}) costs.blocks[2 * layer].per_token *= 10.2;
  for (size_t block = 42; block < 48; ++block) costs.blocks[block].per_token = 0;
  const PipelineJob job{.stages = 4, .tokens = 65536, .length = 65536, .size = kCudaSize};
  const PipelineChoice choice = choose_pipeline(costs, job);
  const PipelineCosts known = costs_of_cut(costs, job, explicit_partition(24, {2, 1, 3, 4, 4, 3, 2, 5}));
  EXPECT_EQ(choice.shape.pieces, 2);
  EXPECT_LE(choice.seconds, 1.01 * pipeline_seconds(known, 14, 4682, 4682));
  EXPECT_LT(choice.seconds, 0.9 * choose_micro_batch(costs, job, 2, false).seconds);
}

// What blocks and head cost on an H200 by time_blocks (milliseconds for n tokens or rows: fixed + n · per_token), and
// how long jobs on four of them took with the cuts that were chosen by it (docs/performance.md).
class FourH200Test : public testing::Test {
 protected:
  struct Measured {
    StageTime mixer, attention, cutting, dense, experts, head;
  };
  struct Run {
    std::vector<int64_t> ends;  // of the virtual stages, in blocks
    int64_t micro_batches, samples;
    double seconds;
  };
  static PipelineJob job_of(int64_t samples, int64_t length) {
    return {.stages = 4,
            .tokens = samples * length,
            .length = length,
            .size = kGrowingSize,
            .result_bytes = 65536.0 * sizeof(float) / static_cast<double>(length)};
  }
  static BlockCosts costs_of(const Measured& measured, double length) {
    const double kept = 5 / length;  // the tails
    BlockCosts costs{
        .blocks = {}, .head = in_seconds(measured.head, 1 / length), .transfer = {.fixed = 20e-6, .per_token = 61e-9}};
    for (int64_t layer = 0; layer < 24; ++layer) {
      const StageTime& mixer = layer == 21                    ? measured.cutting
                               : layer < 21 && layer % 4 == 2 ? measured.attention
                                                              : measured.mixer;
      costs.blocks.push_back(in_seconds(mixer, layer > 21 ? kept : 1));
      costs.blocks.push_back(in_seconds(layer < 2 ? measured.dense : measured.experts, layer >= 21 ? kept : 1));
    }
    return costs;
  }
  // The least and the largest of what runs took longer than the replay says.
  static std::pair<double, double> slower(const BlockCosts& costs, const PipelineJob& job,
                                          const std::vector<Run>& runs) {
    std::pair found{std::numeric_limits<double>::infinity(), 0.0};
    for (const Run& run : runs) {
      PipelineCosts of_cut = costs_of_cut(costs, job, cut_at_blocks(run.ends));
      of_cut.result_seconds = job.result_bytes / 40e9;
      const int64_t last = job.tokens / job.length - (run.micro_batches - 1) * run.samples;
      const double ratio =
          run.seconds / pipeline_seconds(of_cut, run.micro_batches, run.samples * job.length, last * job.length);
      found = {std::min(found.first, ratio), std::max(found.second, ratio)};
    }
    return found;
  }

  const Measured short_texts{.mixer = {0.0054, 51e-6},
                             .attention = {0.0108, 44e-6},
                             .cutting = {0.0201, 32e-6},
                             .dense = {0.0098, 113e-6},
                             .experts = {0.1118, 128e-6},
                             .head = {0.0642, 213e-6}},
      texts{.mixer = {0.0095, 53e-6},
            .attention = {0.0087, 65e-6},
            .cutting = {0.0299, 30e-6},
            .dense = {0.0198, 112e-6},
            .experts = {0.1207, 128e-6},
            .head = {0.0711, 207e-6}};

 private:
  static StageTime in_seconds(StageTime milliseconds, double share) {
    return {.fixed = 1e-3 * milliseconds.fixed, .per_token = 1e-3 * share * milliseconds.per_token};
  }
};

// Runs take longer than the replay says: four multiprocessors of each GPU are left to transfers, and the chips get
// slower as they get warm. But they do so by about the same share whatever the cut, so that the fastest cut is the
// same.
TEST_F(FourH200Test, RunsTakeLongerByTheSameShare) {
  const auto expect_alike = [](std::pair<double, double> slower) {
    EXPECT_GT(slower.first, 1);
    EXPECT_LT(slower.second, 1.21);
    EXPECT_LT(slower.second, 1.03 * slower.first);
  };
  expect_alike(
      slower(costs_of(short_texts, 32), job_of(1024, 32),
             {{{12, 24, 36, 48}, 11, 98, 0.06288}, {{3, 6, 10, 14, 19, 23, 27, 30, 34, 38, 41, 48}, 6, 187, 0.05115}}));
  expect_alike(slower(costs_of(short_texts, 32), job_of(65536, 32),
                      {{{11, 22, 33, 48}, 106, 623, 2.7204}, {{6, 11, 16, 22, 27, 33, 38, 48}, 64, 1033, 2.6836}}));
  expect_alike(slower(costs_of(texts, 2048), job_of(8, 2048),
                      {{{2, 5, 7, 10, 16, 22, 29, 35, 37, 41, 43, 48}, 8, 1, 0.02735},
                       {{5, 8, 12, 17, 21, 25, 29, 32, 35, 37, 39, 41, 43, 45, 47, 48}, 8, 1, 0.02658},
                       {{4, 8, 12, 16, 20, 24, 28, 32, 34, 36, 38, 40, 42, 44, 46, 48}, 8, 1, 0.02708}}));
}

TEST_F(FourH200Test, CutsBetweenBlocksAreFaster) {
  for (const auto& [measured, job, share] :
       {std::tuple(short_texts, job_of(1024, 32), 0.98), std::tuple(short_texts, job_of(65536, 32), 0.98),
        std::tuple(texts, job_of(8, 2048), 1.0)}) {
    const BlockCosts costs = costs_of(measured, static_cast<double>(job.length));
    double equal = std::numeric_limits<double>::infinity();
    for (int64_t pieces = 1; pieces <= 4; ++pieces)
      equal = std::min(equal, choose_micro_batch(costs, job, pieces, false).seconds);
    EXPECT_LT(choose_pipeline(costs, job).seconds, share * equal) << job.length << " " << job.tokens;
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
  const auto cut = static_cast<size_t>(kBlocksOfLayer * last_attention_layer(config));  // timed as it cuts the tails
  thrice[cut] = {3 * estimated.blocks[cut].fixed, 3 * estimated.blocks[cut].per_token};
  const BlockCosts found = measured_costs(config, DType::kBf16, 0.25, 0.5, thrice, {.fixed = 7, .per_token = 6});
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

TEST(BalancedPartitionTest, TheLargestPartIsSmallest) {
  const auto counts = [](const std::vector<double>& costs, int64_t stages) {
    std::vector<int64_t> result;
    for (const LayerRange& range : balanced_partition(costs, stages))
      result.push_back(end_block(range) - first_block(range));
    return result;
  };
  EXPECT_EQ(counts({1, 1, 1, 1, 1, 1}, 3), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(counts({4, 1, 1, 1, 1}, 2), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(counts({1, 1, 1, 5}, 4), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_THROW(balanced_partition({1, 1}, 3), Error);
  // Against every cut of seven blocks in three.
  const std::vector<double> costs = {3, 1, 4, 1, 5, 9, 2};
  double best = 1e9;
  for (size_t a = 1; a < 6; ++a)
    for (size_t b = a + 1; b < 7; ++b) {
      const auto sum = [&](size_t from, size_t to) {
        return std::accumulate(costs.begin() + static_cast<long>(from), costs.begin() + static_cast<long>(to), 0.0);
      };
      best = std::min(best, std::max({sum(0, a), sum(a, b), sum(b, 7)}));
    }
  double found = 0;
  for (const LayerRange& range : balanced_partition(costs, 3))
    found = std::max(found, std::accumulate(costs.begin() + first_block(range), costs.begin() + end_block(range), 0.0));
  EXPECT_DOUBLE_EQ(found, best);
}

// The last block takes as long as four others. With the smallest pieces (3, 3, 3, 1, 1, 1 blocks) the last of three
// ranks has seven of the fifteen units; with the fastest of all cuts a micro-batch takes 5.4, by the replay.
TEST(ChoosePipelineTest, ABalancedCutIsAlmostTheFastestOfAll) {
  const BlockCosts costs{.blocks = std::vector<StageTime>(12, {.fixed = 0, .per_token = 1e-6}),
                         .head = {.fixed = 0, .per_token = 3e-6},
                         .transfer = {}};
  const PipelineJob job{.stages = 3, .tokens = 64000, .length = 32, .size = {.samples = 10}};
  double fastest = std::numeric_limits<double>::infinity();
  std::vector<LayerRange> cut(6);
  const std::function<void(size_t)> try_all = [&](size_t at) {
    const int64_t first = at == 0 ? 0 : end_block(cut[at - 1]), behind = std::ssize(cut) - static_cast<int64_t>(at) - 1;
    for (int64_t end = behind == 0 ? 12 : first + 1; end <= 12 - behind; ++end) {
      cut[at] = layers_of_blocks(first, end);
      if (behind > 0)
        try_all(at + 1);
      else
        fastest = std::min(fastest, pipeline_seconds(costs_of_cut(costs, job, cut), 200, 320, 320));
    }
  };
  try_all(0);
  const PipelineChoice choice = choose_micro_batch(costs, job, 2, true);
  const double found = pipeline_seconds(costs_of_cut(costs, job, choice.cut), 200, 320, 320);
  EXPECT_LE(found, 1.02 * fastest);
}

}  // namespace
}  // namespace lfm2
