// Every layer is in exactly one stage, for all numbers of layers and stages.
#include "stage/model/partition.h"

#include "support/weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;

TEST(PartitionTest, EqualRangesCoverEveryLayerOnce) {
  for (int64_t layers = 1; layers <= 48; ++layers) {
    for (int64_t stages = 1; stages <= layers; ++stages) {
      const auto ranges = equal_partition(layers, stages);
      ASSERT_EQ(static_cast<int64_t>(ranges.size()), stages);
      int64_t next = 0;
      for (const LayerRange& range : ranges) {
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.count, layers / stages);
        EXPECT_LE(range.count, (layers + stages - 1) / stages);
        next = range.end();
      }
      EXPECT_EQ(next, layers);
    }
  }
}

TEST(PartitionTest, LongerRangesComeFirst) {
  EXPECT_EQ(equal_partition(5, 4), (std::vector<LayerRange>{{0, 2}, {2, 1}, {3, 1}, {4, 1}}));
}

TEST(PartitionTest, RefusesMoreStagesThanLayers) {
  for (int64_t stages : {0, -1, 6})
    expect_error([&] { equal_partition(5, stages); }, ExitCode::kUnavailable, {std::to_string(stages), "1 to 5"});
}

TEST(PartitionTest, ExplicitCountsMustAddUp) {
  EXPECT_EQ(explicit_partition(24, {7, 6, 6, 5}), (std::vector<LayerRange>{{0, 7}, {7, 6}, {13, 6}, {19, 5}}));
  EXPECT_EQ(explicit_partition(3, {3}), (std::vector<LayerRange>{{0, 3}}));
  const std::vector<std::vector<int64_t>> bad = {{},       {23},     {25},     {24, 0},  {0, 24},
                                                 {12, 13}, {12, 11}, {-1, 25}, {25, -1}, {INT64_MAX, INT64_MAX, 26}};
  for (const auto& counts : bad)
    expect_error([&] { explicit_partition(24, counts); }, ExitCode::kUsage, {"--layers", "24"});
}

TEST(PartitionTest, CutsBetweenTheBlocksOfALayer) {
  const auto cut = given_partition(24, 4, {6.5, 6, 5.5, 6});
  EXPECT_EQ(cut, (std::vector<LayerRange>{
                     {.first = 0, .count = 7, .without_last_feed_forward = true},
                     {.first = 6, .count = 7, .without_first_mixer = true, .without_last_feed_forward = true},
                     {.first = 12, .count = 6, .without_first_mixer = true},
                     {.first = 18, .count = 6}}));
  EXPECT_EQ(layers_text(cut), "0-6m,6f-12m,12f-17,18-23");
  EXPECT_TRUE(cut[0].has_mixer(6) && !cut[0].has_feed_forward(6) && cut[0].has_feed_forward(5));
  EXPECT_TRUE(!cut[1].has_mixer(6) && cut[1].has_feed_forward(6) && cut[1].has_mixer(12));
  EXPECT_FALSE(cut[1].has_mixer(5) || cut[1].has_feed_forward(13) || cut[3].has_mixer(-1));
  EXPECT_EQ(given_partition(24, 2, {7, 6, 6, 5}, 2), explicit_partition(24, {7, 6, 6, 5}));
  for (int64_t first = 0; first < 9; ++first)
    for (int64_t end = first + 1; end <= 9; ++end) {
      const LayerRange range = layers_of_blocks(first, end);
      EXPECT_EQ(first_block(range), first);
      EXPECT_EQ(end_block(range), end);
      int64_t blocks = 0;
      for (int64_t layer = range.first; layer < range.end(); ++layer)
        blocks += range.has_mixer(layer) + range.has_feed_forward(layer);
      EXPECT_EQ(blocks, end - first);
    }
  for (const auto& counts :
       {std::vector<double>{6.25, 6, 5.75, 6}, {6.5, 6, 5.5, 5.5}, {0, 12, 6, 6}, {-0.5, 12.5, 6, 6}})
    expect_error([&] { given_partition(24, 4, counts); }, ExitCode::kUsage, {"--layers", "24", "halves"});
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

}  // namespace
}  // namespace lfm2
