// How long jobs take by the replay: known formulas, and what cannot be faster.
#include "stage/scoring/planning/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace lfm2 {
namespace {

// Every piece takes 1 / pieces seconds.
double seconds(PipelineShape shape, int64_t micro_batches, double transfer = 0) {
  return replay(shape, micro_batches,
                {.forward = [&](int64_t, int64_t) { return 1.0 / static_cast<double>(shape.pieces); },
                 .transfer = [&](int64_t) { return transfer; },
                 .head = {}})
      .seconds;
}

TEST(ReplayTest, FillAndDrainAreThoseOfTheFormula) {
  for (int64_t stages = 1; stages <= 8; ++stages)
    for (int64_t pieces = 1; pieces <= 4; ++pieces) {
      if (stages == 1 && pieces > 1) continue;
      const PipelineShape shape{stages, pieces};
      for (int64_t micro_batches = 1; micro_batches <= 50; ++micro_batches) {
        const double fill = static_cast<double>(stages - 1) / static_cast<double>(pieces);
        const double least = static_cast<double>(micro_batches) + fill;
        if (pieces == 1 || micro_batches >= stages)
          EXPECT_NEAR(seconds(shape, micro_batches), least, 1e-9) << stages << " " << pieces << " " << micro_batches;
        // Fewer than the ring has ranks: the first one waits until they have come round.
        else
          EXPECT_NEAR(
              seconds(shape, micro_batches),
              static_cast<double>(stages) + static_cast<double>(micro_batches - 1) / static_cast<double>(pieces), 1e-9);
      }
    }
}

// A whole group lies in front of the ring's first rank, so that what a transfer takes is lost on the way of the first
// micro-batch alone.
TEST(ReplayTest, TransfersLieUnderComputing) {
  for (const PipelineShape shape : {PipelineShape{4, 1}, {4, 2}, {4, 3}, {8, 2}, {2, 6}})
    for (int64_t micro_batches : {12, 13, 24, 29, 60}) {
      const double piece = 1.0 / static_cast<double>(shape.pieces), transfer = 0.3 * piece;
      const double fill = static_cast<double>(shape.stages - 1) * (piece + transfer);
      EXPECT_NEAR(seconds(shape, micro_batches, transfer), static_cast<double>(micro_batches) + fill, 1e-9)
          << shape.stages << " " << shape.pieces << " " << micro_batches;
    }
}

TEST(ReplayTest, ASlowRankIsBusyAllTheTime) {
  const Replayed found =
      replay({3, 2}, 40,
             {.forward = [](int64_t virtual_stage, int64_t) { return virtual_stage % 3 == 1 ? 2 : 1; },
              .transfer = {},
              .head = [](int64_t) { return 0.5; }});
  ASSERT_EQ(found.busy.size(), 3u);
  EXPECT_NEAR(found.busy[0], 80, 1e-9);
  EXPECT_NEAR(found.busy[1], 160, 1e-9);
  EXPECT_NEAR(found.busy[2], 100, 1e-9);
  EXPECT_GE(found.seconds, 160 + 1 + 1.5);
  EXPECT_LE(found.seconds, 160 + 8);
}

// Results are handed out one after the other, beside what is computed: where that takes longer, it counts from the
// first micro-batch on, which comes late in a ring.
TEST(ReplayTest, ResultsAreHandedOutMeanwhile) {
  const auto seconds_with = [](PipelineShape shape, double results) {
    return replay(shape, 8,
                  {.forward = [&](int64_t, int64_t) { return 1.0 / static_cast<double>(shape.pieces); },
                   .transfer = {},
                   .head = {},
                   .results = [&](int64_t micro_batch) { return micro_batch == 7 ? results / 2 : results; }})
        .seconds;
  };
  EXPECT_NEAR(seconds_with({1}, 1), 8.5, 1e-9);
  EXPECT_NEAR(seconds_with({4}, 0.5), 11.25, 1e-9);
  EXPECT_NEAR(seconds_with({4}, 2), 4 + 15, 1e-9);
  // In a ring the first comes when a group of six has gone through the first pieces.
  EXPECT_NEAR(seconds_with({4, 2}, 2), 6 + 15, 1e-9);
}

// Ranks that share a device add up what they compute: nothing but the first micro-batch's transfers can be lost,
// however many micro-batches there are.
TEST(ReplayTest, RanksOfOneDeviceComputeInTurn) {
  const std::vector<int> one(4, 0), pairs = {0, 0, 1, 1}, own = {3, 1, 0, 2};
  for (const PipelineShape shape : {PipelineShape{4, 1}, {4, 2}, {4, 3}})
    for (const int64_t micro_batches : {1, 2, 5, 13, 60}) {
      const double piece = 1.0 / static_cast<double>(shape.pieces), transfer = 0.1 * piece;
      const ActionTimes times{.forward = [&](int64_t, int64_t) { return piece; },
                              .transfer = [&](int64_t) { return transfer; },
                              .head = {}};
      const auto count = static_cast<double>(micro_batches);
      const double alone = replay(shape, micro_batches, times).seconds;
      EXPECT_DOUBLE_EQ(replay(shape, micro_batches, times, own).seconds, alone);
      const Replayed shared = replay(shape, micro_batches, times, one);
      for (const double busy : shared.busy) EXPECT_NEAR(busy, count, 1e-9);
      const double lost = static_cast<double>(shape.virtual_stages() - 1) * transfer;
      EXPECT_GE(shared.seconds, 4 * count - 1e-9);
      EXPECT_LE(shared.seconds, 4 * count + lost + 1e-9) << shape.pieces << " " << micro_batches;
      const double halves = replay(shape, micro_batches, times, pairs).seconds;
      EXPECT_GE(halves, std::max(alone, 2 * count) - 1e-9);
      EXPECT_LE(halves, shared.seconds + 1e-9);
    }
}

}  // namespace
}  // namespace lfm2
