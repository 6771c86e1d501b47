#include "serve/live_requests.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace lfm2::serve {
namespace {

using std::chrono::milliseconds;
using Added = LiveRequests::Added;

Request request_of(int32_t sample) {
  Request request;
  request.sample = sample;
  request.prompt = {1, 2};
  request.max_new = 4;
  return request;
}

TEST(LiveRequestsTest, ComeInOrderAndTheirTokensGoBack) {
  LiveRequests live(8);
  const int32_t first = live.reserve(3);
  EXPECT_EQ(live.reserve(1), first + 3);
  EXPECT_EQ(live.add({request_of(first), request_of(first + 1), request_of(first + 2)}), Added::kYes);
  EXPECT_EQ(live.waiting(), 3);
  EXPECT_EQ(live.next()->sample, first);
  EXPECT_EQ(live.next()->sample, first + 1);
  EXPECT_EQ(live.running(), 2);
  live.begun(first, 0);
  live.begun(first + 1, 1);
  live.drawn(
      {{first + 1, {.token = 7, .log_prob = -1}}, {first, {.token = 8, .log_prob = -2, .ends = FinishReason::kStop}}});
  const std::vector<Drawn> drawn = live.wait_for_tokens(milliseconds(0));
  ASSERT_EQ(drawn.size(), 2u);
  EXPECT_EQ(drawn[0].sample, first + 1);
  EXPECT_EQ(drawn[0].token.token, 7);
  EXPECT_EQ(drawn[0].cached, 1);
  EXPECT_EQ(drawn[1].cached, 0);
  EXPECT_EQ(drawn[1].token.ends, FinishReason::kStop);
  EXPECT_EQ(live.running(), 1);
  EXPECT_TRUE(live.wait_for_tokens(milliseconds(1)).empty());
  EXPECT_EQ(live.metrics().generated_tokens, 2);
  EXPECT_EQ(live.metrics().prompt_tokens, 4);
  EXPECT_EQ(live.metrics().cached_tokens, 1);
}

TEST(LiveRequestsTest, TooManyWait) {
  LiveRequests live(2);
  EXPECT_EQ(live.add({request_of(0), request_of(1), request_of(2)}), Added::kFull);
  EXPECT_EQ(live.add({request_of(0), request_of(1)}), Added::kYes);
  EXPECT_EQ(live.add({request_of(2)}), Added::kFull);
  live.next();
  EXPECT_EQ(live.add({request_of(2)}), Added::kYes);
}

// A request that still waits is the scheduler's business no more than one that has ended.
TEST(LiveRequestsTest, Cancelled) {
  LiveRequests live(8);
  live.add({request_of(0), request_of(1), request_of(2)});
  live.next();
  live.cancel(1);
  EXPECT_EQ(live.waiting(), 1);
  EXPECT_TRUE(live.cancelled().empty());
  live.cancel(0);
  live.cancel(0);
  live.drawn({{0, {.token = 5}}});  // it was in flight
  EXPECT_TRUE(live.wait_for_tokens(milliseconds(0)).empty());
  EXPECT_EQ(live.cancelled(), (std::vector<int32_t>{0}));
  EXPECT_TRUE(live.cancelled().empty());
  EXPECT_EQ(live.next()->sample, 2);
  EXPECT_EQ(live.running(), 1);
}

TEST(LiveRequestsTest, Drained) {
  LiveRequests live(8);
  live.add({request_of(0)});
  EXPECT_FALSE(live.ended());
  live.drain();
  EXPECT_TRUE(live.draining());
  EXPECT_FALSE(live.ended());
  EXPECT_EQ(live.add({request_of(1)}), Added::kDraining);
  EXPECT_EQ(live.next()->sample, 0);
  EXPECT_TRUE(live.ended());
}

TEST(LiveRequestsTest, WakesWhoeverWaits) {
  LiveRequests live(8);
  live.add({request_of(0)});
  live.next();
  std::thread generation([&] {
    std::this_thread::sleep_for(milliseconds(20));
    live.drawn({{0, {.token = 3}}});
  });
  EXPECT_EQ(live.wait_for_tokens(std::chrono::seconds(20)).size(), 1u);
  generation.join();
}

TEST(MetricsTest, AreReadByPrometheus) {
  Metrics metrics;
  metrics.first_token_seconds.observe(0.003);
  metrics.first_token_seconds.observe(1000);
  metrics.requests_completed = 2;
  const std::string text = metrics.text({.running = 3, .waiting = 4});
  for (const char* line :
       {"lfm2_num_requests_running 3\n", "lfm2_num_requests_waiting 4\n",
        "lfm2_requests_total{result=\"completed\"} 2\n", "lfm2_time_to_first_token_seconds_bucket{le=\"0.0025\"} 0\n",
        "lfm2_time_to_first_token_seconds_bucket{le=\"0.005\"} 1\n",
        "lfm2_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n", "lfm2_time_to_first_token_seconds_count 2\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

}  // namespace
}  // namespace lfm2::serve
