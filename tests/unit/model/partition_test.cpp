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

}  // namespace
}  // namespace lfm2
