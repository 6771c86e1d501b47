// Shares of time.
#include "stage/trace.h"

#include <gtest/gtest.h>

namespace lfm2 {
namespace {

TEST(TraceTest, SecondsWithin) {
  const std::vector<Span> compute{{0, 0.0, 1.0}, {0, 1.0, 2.0}, {0, 3.0, 4.0}};
  EXPECT_DOUBLE_EQ(seconds_within({{0, 0.5, 1.5}}, compute), 1.0);  // across two
  EXPECT_DOUBLE_EQ(seconds_within({{0, 2.25, 2.75}}, compute), 0);  // in the gap
  EXPECT_DOUBLE_EQ(seconds_within({{0, 1.5, 3.5}}, compute), 1.0);  // both sides of the gap
  EXPECT_DOUBLE_EQ(seconds_within({{0, -1, 0.5}, {0, 0.25, 0.75}, {0, 3.5, 9}}, compute), 1.5);
  EXPECT_DOUBLE_EQ(seconds_within({}, compute), 0);
  EXPECT_DOUBLE_EQ(seconds_within(compute, {}), 0);
}

}  // namespace
}  // namespace lfm2
