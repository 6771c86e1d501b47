// How a walk that is too long for one launch is cut. Needs no GPU and no memory of the walk's size.
#include "operators/walk.h"

#include <gtest/gtest.h>

namespace lfm2::operators {
namespace {

constexpr int64_t kTooLong = int64_t{1} << 31;  // units

// A dense output [outer, inner], with a first input of its shape and a second one that each step of the outer loop
// reads again, so that the two loops stay apart.
Walk<3> broadcast_walk(int64_t outer, int64_t inner) {
  Walk<3> walk;
  add_loop<3>(walk, inner, {1, 1, 1});
  add_loop<3>(walk, outer, {inner, inner, 0});
  tidy(walk);
  return walk;
}

TEST(WalkTest, HalvesOfTheOuterLoopAreTheWholeWalk) {
  for (const int unit : {1, 4, 8})
    for (const int64_t outer : {2, 3, 4, 5, 7, 8, 9}) {
      SCOPED_TRACE(testing::Message() << outer << " rows, units of " << unit);
      const int64_t inner = (kTooLong / outer + 1) * unit;
      const auto [first, second] = halves(broadcast_walk(outer, inner), unit);
      EXPECT_EQ(first.dims[0], inner);
      EXPECT_EQ(second.dims[0], inner);
      EXPECT_GT(first.dims[1], 0);
      EXPECT_GT(second.dims[1], 0);
      EXPECT_EQ(first.dims[1] + second.dims[1], outer);
      EXPECT_EQ(second.start[0], first.dims[1] * inner);
      EXPECT_EQ(second.start[2], 0);
    }
}

TEST(WalkTest, HalvesOfOneLoopAreCutBetweenUnits) {
  for (const int unit : {1, 4, 8}) {
    Walk<1> walk;
    add_loop<1>(walk, kTooLong * unit + 3, {1});
    const auto [first, second] = halves(walk, unit);
    EXPECT_EQ(first.dims[0] % unit, 0);
    EXPECT_GT(second.dims[0], 0);
    EXPECT_EQ(first.dims[0] + second.dims[0], kTooLong * unit + 3);
    EXPECT_EQ(second.start[0], first.dims[0]);
  }
}

}  // namespace
}  // namespace lfm2::operators
