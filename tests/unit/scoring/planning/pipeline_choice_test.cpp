// The choice of pieces, cut and micro-batch by what blocks cost.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "stage/model/partition.h"
#include "stage/scoring/planning/choose.h"
#include "stage/scoring/planning/replay.h"

namespace lfm2 {
namespace {

// Layers whose two blocks take equally long.
std::vector<StageTime> blocks_of(const std::vector<StageTime>& layers) {
  std::vector<StageTime> blocks;
  for (const StageTime& layer : layers)
    blocks.insert(blocks.end(), kBlocksOfLayer, {.fixed = layer.fixed / 2, .per_token = layer.per_token / 2});
  return blocks;
}

PipelineJob with_pieces(PipelineJob job, int64_t pieces) {
  job.pieces = pieces;
  return job;
}
PipelineJob with_equal_pieces(PipelineJob job, int64_t pieces) {
  job.balance = false;
  return with_pieces(std::move(job), pieces);
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
  const PipelineChoice one = choose(costs, with_equal_pieces(job, 1)), chosen = choose(costs, job);
  EXPECT_GT(chosen.shape.pieces, 1);
  EXPECT_LT(chosen.seconds, 0.95 * one.seconds);
  EXPECT_GT(chosen.target_tokens, one.target_tokens);
  for (const LayerRange& range : chosen.cut)
    EXPECT_EQ(end_block(range) - first_block(range), 48 / chosen.shape.virtual_stages());
  // Where a rank is alone, or has one layer, or the job is long, there is nothing to win.
  EXPECT_EQ(choose(costs, job_of(1, 32768)).shape.pieces, 1);
  EXPECT_EQ(choose(costs, job_of(24, 32768)).shape.pieces, 1);
  EXPECT_EQ(choose(costs, job_of(4, 32768000)).shape.pieces, 1);
  // The size of micro-batch may be given.
  const PipelineChoice given = choose(costs, job_of(4, 32768, 10));
  EXPECT_EQ(given.target_tokens, 320);
  // One slow layer: the cut is balanced.
  for (const size_t block : {10, 11}) costs.blocks[block].per_token *= 8;
  const PipelineChoice balanced = choose(costs, job);
  EXPECT_NE(balanced.cut, equal_partition(24, balanced.shape.virtual_stages()));
  EXPECT_LT(balanced.seconds, 0.9 * choose(costs, with_equal_pieces(job, balanced.shape.pieces)).seconds);
}

// Attention over a text of 65 536 tokens makes five of 24 token mixers take ten times as long as the others. One rank
// of four must have two of them, so it gets few others, which takes a move of a layer past several stages.
TEST(ChoosePipelineTest, HeavyLayersAreSharedAmongRanks) {
  BlockCosts costs{.blocks = blocks_of({24, {.fixed = 0.12e-3, .per_token = 0.2e-6}}),
                   .head = {},
                   .transfer = {.fixed = 20e-6, .per_token = 60e-9}};
  for (const size_t layer : {2, 6, 10, 14, 18}) costs.blocks[2 * layer].per_token *= 10.2;
  for (size_t block = 42; block < 48; ++block) costs.blocks[block].per_token = 0;
  const PipelineJob job{.stages = 4,
                        .tokens = 65536,
                        .length = 65536,
                        .size = {.tokens = kMaxMeasuredTarget, .smallest_part = kMinCudaPart}};
  const PipelineChoice choice = choose(costs, job);
  const PipelineCosts known = costs_of_cut(costs, job, explicit_partition(24, {2, 1, 3, 4, 4, 3, 2, 5}));
  EXPECT_EQ(choice.shape.pieces, 2);
  EXPECT_LE(choice.seconds, 1.01 * pipeline_seconds(known, 14, 4682, 4682));
  EXPECT_LT(choice.seconds, 0.9 * choose(costs, with_equal_pieces(job, 2)).seconds);
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
            .size = {.tokens = kMaxMeasuredTarget, .smallest_part = kMinCudaPart, .growth = 2.5e-5},
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
      equal = std::min(equal, choose(costs, with_equal_pieces(job, pieces)).seconds);
    EXPECT_LT(choose(costs, job).seconds, share * equal) << job.length << " " << job.tokens;
  }
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
  const PipelineChoice choice = choose(costs, with_pieces(job, 2));
  const double found = pipeline_seconds(costs_of_cut(costs, job, choice.cut), 200, 320, 320);
  EXPECT_LE(found, 1.02 * fastest);
}

}  // namespace
}  // namespace lfm2
