#include "stage/pipeline/replica_link.h"

#include <gtest/gtest.h>

namespace lfm2 {
namespace {

TEST(SilenceTest, IsAnErrorAfterTwiceTheTimeout) {
  Silence silence("rank 3", 10, 2, 100);
  for (double now = 100; now < 119.5; ++now) silence.look(now);
  silence.heard();
  for (double now = 120; now < 138.5; ++now) silence.look(now);
  try {
    for (double now = 139; now < 141; ++now) silence.look(now);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kLost);
    EXPECT_EQ(std::string(error.what()), "no word for 20.0 s (--timeout 10) from rank 3");
  }
}

// Whoever was suspended blames nobody for the time that it slept.
TEST(SilenceTest, ALongTimeWithoutALookHardlyCounts) {
  Silence silence("rank 3", 10, 2, 0);
  for (int hour = 1; hour < 8; ++hour) silence.look(3600.0 * hour);
  EXPECT_THROW(silence.look(3600 * 8), Error);  // eight times 2.5 s
}

TEST(SilenceTest, WithoutATimeoutNobodyIsLost) {
  Silence silence("rank 3", 0, 2, 0);
  for (double now = 0; now < 1e6; now += 1000) silence.look(now);
}

TEST(ReplicaLinkTest, MessagesComeBackWhole) {
  Request request;
  request.sample = 7;
  request.prompt = {1, 2, 3};
  request.max_new = 5;
  request.stop = {"end"};
  const auto order = from_words<ReplicaOrder>(
      to_words(ReplicaOrder{.requests = {request, request}, .cancelled = {4}, .ended = true, .stop = true}));
  EXPECT_EQ(order.requests, std::vector(2, request));
  EXPECT_EQ(order.cancelled, std::vector<int32_t>{4});
  EXPECT_TRUE(order.ended && order.stop);
  const auto news = from_words<ReplicaNews>(
      to_words(ReplicaNews{.begun = {{7, int64_t{1} << 40}},
                           .drawn = {{7, {.token = 9, .log_prob = -1.5f, .ends = FinishReason::kStop}}},
                           .stage_seconds = {{.stage = 1, .busy = 0.5, .total = 2}},
                           .caches = std::pair(int64_t{3}, int64_t{4})}));
  EXPECT_EQ(news.begun, (std::vector<std::pair<int32_t, int64_t>>{{7, int64_t{1} << 40}}));
  ASSERT_EQ(news.drawn.size(), 1u);
  EXPECT_EQ(news.drawn[0].sample, 7);
  EXPECT_EQ(news.drawn[0].token.token, 9);
  EXPECT_EQ(news.drawn[0].token.ends, FinishReason::kStop);
  EXPECT_EQ(news.stage_seconds[0].total, 2);
  EXPECT_EQ(news.caches, (std::pair<int64_t, int64_t>{3, 4}));
  EXPECT_TRUE(from_words<ReplicaNews>(to_words(ReplicaNews())).empty());
}

}  // namespace
}  // namespace lfm2
