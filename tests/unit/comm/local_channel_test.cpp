// What a channel between threads says of its progress.
#include "support/local_channel.h"

#include <gtest/gtest.h>

#include <array>

namespace lfm2 {
namespace {

struct SettableEvent : Event {
  bool done() const override { return is_done; }
  bool is_done = false;
};

TEST(LocalChannelTest, ProgressIsThatATransferBegan) {
  LocalLink link;
  LocalChannel sender(nullptr, &link), receiver(&link, nullptr);
  std::array<int32_t, 4> from{1, 2, 3, 4}, into{};
  const auto tensor = [](std::array<int32_t, 4>& numbers) {
    return Tensor(reinterpret_cast<std::byte*>(numbers.data()), DType::kI32, {4});
  };
  SettableEvent computed;
  sender.send(0, tensor(from), computed);
  EXPECT_FALSE(sender.progress());  // not computed yet
  computed.is_done = true;
  EXPECT_TRUE(sender.progress());
  EXPECT_FALSE(sender.progress());
  receiver.receive(0, tensor(into));
  EXPECT_TRUE(receiver.arrived(0));
  EXPECT_TRUE(sender.sent(0));
  EXPECT_EQ(into, from);
  EXPECT_FALSE(receiver.progress());
}

}  // namespace
}  // namespace lfm2
