#include "serve/live_requests.h"

#include <fmt/format.h>
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
  RequestSource& source = live.replica(0);
  const int32_t first = live.reserve(3);
  EXPECT_EQ(live.reserve(1), first + 3);
  EXPECT_EQ(live.add({request_of(first), request_of(first + 1), request_of(first + 2)}), Added::kYes);
  EXPECT_EQ(live.waiting(), 3);
  EXPECT_EQ(source.next()->sample, first);
  EXPECT_EQ(source.next()->sample, first + 1);
  EXPECT_EQ(live.running(), 2);
  source.begun(first, 0);
  source.begun(first + 1, 1);
  source.drawn(
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
  EXPECT_EQ(live.metrics().replicas[0].generated_tokens, 2);
  EXPECT_EQ(live.metrics().replicas[0].prompt_tokens, 4);
  EXPECT_EQ(live.metrics().replicas[0].cached_tokens, 1);
}

// The times are those of clients. Work is counted, whoever asks for it.
TEST(LiveRequestsTest, LinesOfBatchesHaveNoTimes) {
  LiveRequests live(2);
  RequestSource& source = live.replica(0);
  EXPECT_TRUE(live.add_in_background({request_of(0)}));
  source.next();
  source.begun(0, 0);
  for (int i = 0; i < 2; ++i) source.drawn({{0, {.token = 7}}});
  ReplicaMetrics& metrics = live.metrics().replicas[0];
  EXPECT_EQ(metrics.generated_tokens, 2);
  const auto counts = [&](int queued, int first, int others) {
    EXPECT_NE(metrics.queue_seconds.text("s", "").find(fmt::format("s_count {}\n", queued)), std::string::npos);
    EXPECT_NE(metrics.first_token_seconds.text("s", "").find(fmt::format("s_count {}\n", first)), std::string::npos);
    EXPECT_NE(metrics.token_seconds.text("s", "").find(fmt::format("s_count {}\n", others)), std::string::npos);
  };
  counts(0, 0, 0);
  EXPECT_EQ(live.add({request_of(1)}), Added::kYes);
  source.next();
  source.begun(1, 0);
  for (int i = 0; i < 2; ++i) source.drawn({{1, {.token = 7}}});
  counts(1, 1, 1);
}

TEST(LiveRequestsTest, TooManyWait) {
  LiveRequests live(2);
  RequestSource& source = live.replica(0);
  EXPECT_EQ(live.add({request_of(0), request_of(1), request_of(2)}), Added::kFull);
  EXPECT_EQ(live.add({request_of(0), request_of(1)}), Added::kYes);
  EXPECT_EQ(live.add({request_of(2)}), Added::kFull);
  source.next();
  EXPECT_EQ(live.add({request_of(2)}), Added::kYes);
}

// A request that still waits is the scheduler's business no more than one that has ended.
TEST(LiveRequestsTest, Cancelled) {
  LiveRequests live(8);
  RequestSource& source = live.replica(0);
  live.add({request_of(0), request_of(1), request_of(2)});
  source.next();
  live.cancel(1);
  EXPECT_EQ(live.waiting(), 1);
  EXPECT_TRUE(source.cancelled().empty());
  live.cancel(0);
  live.cancel(0);
  source.drawn({{0, {.token = 5}}});  // it was in flight
  EXPECT_TRUE(live.wait_for_tokens(milliseconds(0)).empty());
  EXPECT_EQ(source.cancelled(), (std::vector<int32_t>{0}));
  EXPECT_TRUE(source.cancelled().empty());
  EXPECT_EQ(source.next()->sample, 2);
  EXPECT_EQ(live.running(), 1);
}

// Requests of no client begin only while no client's request waits, and take no place from one.
TEST(LiveRequestsTest, InTheBackground) {
  LiveRequests live(1);
  RequestSource& source = live.replica(0);
  EXPECT_TRUE(live.add_in_background({request_of(0), request_of(1)}));
  EXPECT_EQ(live.waiting(), 0);
  EXPECT_EQ(live.add({request_of(2)}), Added::kYes);
  EXPECT_EQ(live.add({request_of(3)}), Added::kFull);
  EXPECT_FALSE(live.client_waits_longer_than(milliseconds(10'000)));
  std::this_thread::sleep_for(milliseconds(2));
  EXPECT_TRUE(live.client_waits_longer_than(milliseconds(1)));
  EXPECT_TRUE(live.add_in_background({request_of(4)}));
  EXPECT_EQ(source.next()->sample, 2);
  EXPECT_FALSE(live.client_waits_longer_than(milliseconds(0)));
  EXPECT_EQ(source.next()->sample, 0);
  live.cancel(4);
  live.drain();
  EXPECT_FALSE(live.add_in_background({request_of(5)}));
  EXPECT_EQ(source.next()->sample, 1);
  EXPECT_FALSE(source.next());
  EXPECT_FALSE(source.ended());
  for (const int32_t sample : {0, 1, 2}) live.cancel(sample);
  EXPECT_TRUE(source.ended());
}

TEST(LiveRequestsTest, Drained) {
  LiveRequests live(8);
  RequestSource& source = live.replica(0);
  live.add({request_of(0)});
  EXPECT_FALSE(source.ended());
  live.drain();
  EXPECT_TRUE(live.draining());
  EXPECT_FALSE(source.ended());
  EXPECT_EQ(live.add({request_of(1)}), Added::kDraining);
  EXPECT_EQ(source.next()->sample, 0);
  EXPECT_FALSE(source.ended());
  source.drawn({{0, {.token = 3, .ends = FinishReason::kLength}}});
  EXPECT_TRUE(source.ended());
}

// Each replica gets its own requests, cancellations and tokens, and none ends before the others.
TEST(LiveRequestsTest, OfTwoReplicas) {
  LiveRequests live(8, 2, {.sequences = 2, .waiting_tokens = 100});
  RequestSource &first = live.replica(0), &second = live.replica(1);
  live.add({request_of(0), request_of(1), request_of(2), request_of(3), request_of(4)});
  EXPECT_EQ(live.waiting(), 5);
  EXPECT_EQ(first.next()->sample, 0);
  EXPECT_EQ(first.next()->sample, 2);
  EXPECT_FALSE(first.next());
  EXPECT_EQ(second.next()->sample, 1);
  EXPECT_EQ(live.running_by_replica(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(live.waiting(), 2);
  live.cancel(2);  // sample 4 goes where there is room now
  EXPECT_EQ(first.cancelled(), (std::vector<int32_t>{2}));
  EXPECT_TRUE(second.cancelled().empty());
  EXPECT_EQ(first.next()->sample, 4);
  live.cancel(3);  // the second replica has not heard of it
  EXPECT_TRUE(second.cancelled().empty());
  EXPECT_EQ(second.waiting(), 0);
  first.begun(0, 64);
  second.begun(1, 0);
  second.drawn({{1, {.token = 5, .ends = FinishReason::kStop}}});
  live.drain();
  EXPECT_FALSE(second.ended()) << "the first replica has open requests";
  first.drawn({{0, {.token = 6, .ends = FinishReason::kStop}}, {4, {.token = 7, .ends = FinishReason::kStop}}});
  EXPECT_TRUE(second.ended());
  EXPECT_TRUE(first.ended());
  const std::vector<Drawn> drawn = live.wait_for_tokens(milliseconds(0));
  ASSERT_EQ(drawn.size(), 3u);
  EXPECT_EQ(drawn[0].token.token, 5);
  EXPECT_EQ(drawn[1].cached, 64);
  const auto& replicas = live.metrics().replicas;
  EXPECT_EQ(replicas[0].generated_tokens, 2);
  EXPECT_EQ(replicas[1].generated_tokens, 1);
  EXPECT_EQ(replicas[0].cached_tokens, 64);
  EXPECT_EQ(replicas[1].cached_tokens, 0);
}

TEST(LiveRequestsTest, WakesWhoeverWaits) {
  LiveRequests live(8);
  RequestSource& source = live.replica(0);
  live.add({request_of(0)});
  source.next();
  std::thread generation([&] {
    std::this_thread::sleep_for(milliseconds(20));
    source.drawn({{0, {.token = 3}}});
  });
  EXPECT_EQ(live.wait_for_tokens(std::chrono::seconds(20)).size(), 1u);
  generation.join();
}

TEST(MetricsTest, AreReadByPrometheus) {
  Metrics metrics;
  metrics.replicas[0].first_token_seconds.observe(0.003);
  metrics.replicas[0].first_token_seconds.observe(1000);
  metrics.requests_completed = 2;
  const std::string text = metrics.text({.running = {3}, .waiting = 4});
  for (const char* line :
       {"lfm2_num_requests_running 3\n", "lfm2_num_requests_waiting 4\n",
        "lfm2_requests_total{result=\"completed\"} 2\n", "lfm2_time_to_first_token_seconds_bucket{le=\"0.0025\"} 0\n",
        "lfm2_time_to_first_token_seconds_bucket{le=\"0.005\"} 1\n",
        "lfm2_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n", "lfm2_time_to_first_token_seconds_count 2\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(text.find("replica"), std::string::npos) << text;
}

TEST(MetricsTest, OfTwoReplicas) {
  Metrics metrics(2);
  metrics.replicas[1].generated_tokens = 5;
  metrics.replicas[1].token_seconds.observe(0.003);
  metrics.replicas[1].stage_seconds.set(0, 2.5, 4);
  const std::string text = metrics.text({.running = {3, 0}, .waiting = 4});
  for (const char* line : {"lfm2_num_requests_running{replica=\"0\"} 3\nlfm2_num_requests_running{replica=\"1\"} 0\n",
                           "\nlfm2_num_requests_waiting 4\n", "\nlfm2_generation_tokens_total{replica=\"1\"} 5\n",
                           "\nlfm2_inter_token_latency_seconds_bucket{replica=\"0\",le=\"+Inf\"} 0\n",
                           "\nlfm2_inter_token_latency_seconds_bucket{replica=\"1\",le=\"0.005\"} 1\n",
                           "\nlfm2_inter_token_latency_seconds_count{replica=\"1\"} 1\n",
                           "\nlfm2_stage_busy_seconds_total{replica=\"1\",stage=\"0\"} 2.500\n",
                           "\nlfm2_e2e_request_latency_seconds_count 0\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  const std::string_view head = "# TYPE lfm2_inter_token_latency_seconds histogram\n";
  EXPECT_EQ(text.find(head), text.rfind(head)) << "once for all replicas";
}

}  // namespace
}  // namespace lfm2::serve
