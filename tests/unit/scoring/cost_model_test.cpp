// Sizes of micro-batches and cuts that follow from costs.
#include "stage/scoring/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/error.h"
#include "stage/model/partition.h"

namespace lfm2 {
namespace {

TEST(BestTargetTokensTest, WeighsTheFillAgainstTheFixedCost) {
  // t(T) = a + b T over S stages and N = tokens / T items: (N + S) t is least near N² = S b tokens / a.
  const std::vector<StageTime> stages(4, {.fixed = 0.5e-3, .per_token = 1e-6});
  const int64_t target = best_target_tokens(stages, 32768, 32, 8192);
  const double items = std::sqrt(4 * 1e-6 * 32768 / 0.5e-3);
  EXPECT_NEAR(static_cast<double>(target), 32768 / items, 0.15 * 32768 / items);
  EXPECT_EQ(target % 32, 0);
  // No fixed cost: as small as a sample. Hardly another cost: as large as allowed.
  EXPECT_EQ(best_target_tokens({4, {.fixed = 0, .per_token = 1e-6}}, 32768, 32, 8192), 32);
  EXPECT_EQ(best_target_tokens({{.fixed = 1, .per_token = 1e-6}}, 32768, 32, 8192), 8192);
  // The slowest stage counts; a sample longer than allowed goes alone.
  EXPECT_EQ(best_target_tokens({{.fixed = 0, .per_token = 1e-9}, {.fixed = 1, .per_token = 0}}, 100, 10, 8192), 100);
  EXPECT_EQ(best_target_tokens(stages, 100000, 50000, 8192), 50000);
}

TEST(BalancedPartitionTest, TheLargestPartIsSmallest) {
  const auto counts = [](const std::vector<double>& costs, int64_t stages) {
    std::vector<int64_t> result;
    for (const LayerRange& range : balanced_partition(costs, stages)) result.push_back(range.count);
    return result;
  };
  EXPECT_EQ(counts({1, 1, 1, 1, 1, 1}, 3), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(counts({4, 1, 1, 1, 1}, 2), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(counts({1, 1, 1, 5}, 4), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_THROW(balanced_partition({1, 1}, 3), Error);
  // Against every cut of seven layers in three.
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
    found = std::max(found, std::accumulate(costs.begin() + range.first, costs.begin() + range.end(), 0.0));
  EXPECT_DOUBLE_EQ(found, best);
}

}  // namespace
}  // namespace lfm2
