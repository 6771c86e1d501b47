// Which ranks share a device.
#include "stage/job/backend_choice.h"

#include <gtest/gtest.h>

namespace lfm2 {
namespace {

TEST(DeviceLayoutTest, RanksOfTheSameNameShareADevice) {
  const DeviceLayout own = device_layout({"a", "b", "c"});
  EXPECT_TRUE(own.device_of.empty());
  EXPECT_EQ(own.turns(), 1);
  EXPECT_EQ(own.turn(2), 0);
  EXPECT_TRUE(own.of_ranks(0, 3).empty());

  const DeviceLayout shared = device_layout({"a", "b", "a", "c", "a", "b"});
  EXPECT_EQ(shared.device_of, (std::vector<int>{0, 1, 0, 2, 0, 1}));
  EXPECT_EQ(shared.turns(), 3);
  EXPECT_EQ(shared.turn(0), 0);
  EXPECT_EQ(shared.turn(3), 0);
  EXPECT_EQ(shared.turn(4), 2);
  EXPECT_EQ(shared.turn(5), 1);
  // The ranks of a replica: those of others do not count.
  EXPECT_TRUE(shared.of_ranks(0, 2).empty());
  EXPECT_EQ(shared.of_ranks(0, 3), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(shared.of_ranks(3, 3), (std::vector<int>()));
}

}  // namespace
}  // namespace lfm2
