// How the ring of results ends when a run fails while its consumers are at work.
#include "stage/scoring/result_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/loaded_stage.h"

namespace lfm2::test {
namespace {

// Slow enough that whoever does not wait for it finds it at work.
class SlowConsumer : public ResultConsumer {
 public:
  void consume(const ResultRows&) override {
    entered = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    left = true;
  }
  std::atomic<bool> entered = false, left = false;
};

TEST(ResultPiecesTest, TakeTheRowsOfAMicroBatchWithinBounds) {
  EXPECT_EQ(result_pieces(1), 3u);  // computed, copied, consumed
  EXPECT_EQ(result_pieces(3 * kHeadRows), 3u);
  EXPECT_EQ(result_pieces(3 * kHeadRows + 1), 4u);
  EXPECT_EQ(result_pieces(kMaxResultRows), 8u);
  EXPECT_EQ(result_pieces(int64_t{1} << 40), 8u);
}

TEST(ResultRingTest, AfterStopNoConsumerIsAtWork) {
  LoadedStage loaded("tiny-moe", {0, 8}, DType::kF32);
  constexpr int64_t kRows = 3;
  const int64_t hidden = loaded.shards.config().hidden;
  const Buffer memory = loaded.backend.allocate(static_cast<size_t>(kRows * hidden) * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(memory.data()), kRows * hidden, 1.0f);
  Scratch scratch(loaded.backend.allocate(size_t{1} << 20));
  ResultRing ring(loaded.backend, loaded.stage(), {}, kRows);
  SlowConsumer consumer;
  ring.start({&consumer});
  ring.push(
      Tensor(memory.data(), DType::kF32, {kRows, hidden}), {}, 0, scratch, [](const auto&, Phase) {}, 0);
  while (!consumer.entered) ring.advance();
  ring.stop();
  EXPECT_TRUE(consumer.left);
  ring.stop();  // once more does no harm
}

}  // namespace
}  // namespace lfm2::test
