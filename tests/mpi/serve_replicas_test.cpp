// The server with --replicas: the bits of a job, cached prefixes that stay with their replica, and the same ends.
#include <deque>
#include <set>

#include "support/serve_bits.h"

namespace lfm2::test {
namespace {

class ServeReplicasTest : public ServeBitsTest {
 protected:
  ServeReplicasTest() { weights_ = golden_shards(model_, 4); }

  void start_replicas(int replicas, int stages, const Arguments& more = {}, const std::string& dtype = "fp32") {
    Arguments options{"--replicas", std::to_string(replicas)};
    options.insert(options.end(), more.begin(), more.end());
    start(replicas * stages, options, dtype);
  }
  // Each answered request's line of the access log names the replicas that computed it, and each replica is named.
  static void expect_named_replicas(const std::string& log, int replicas, size_t requests) {
    std::set<int> named;
    size_t lines = 0;
    std::istringstream all(log);
    for (std::string line; std::getline(all, line);) {
      const Json record = Json::parse(line, nullptr, false);
      if (!record.is_object() || record.value("path", "") != "/v1/completions") continue;
      if (!record["complete"].get<bool>()) continue;  // its client left
      ++lines;
      ASSERT_TRUE(record.contains("replica")) << line;
      const Json own = record["replica"].is_array() ? record["replica"] : Json::array({record["replica"]});
      for (const Json& one : own) named.insert(one.get<int>());
    }
    EXPECT_GE(lines, requests);
    EXPECT_EQ(named.size(), static_cast<size_t>(replicas));
    EXPECT_TRUE(*named.begin() == 0 && *named.rbegin() == replicas - 1);
  }
  // Clients that wait for long answers.
  std::deque<HttpClient> ask_for_long_answers(int count, int tokens, bool streams) const {
    std::deque<HttpClient> clients;
    for (int i = 0; i < count; ++i)
      clients.emplace_back(port_).send(http_request("POST", "/v1/completions",
                                                    json_text(Json{{"prompt", {1, 5, 9, i}},
                                                                   {"max_tokens", tokens},
                                                                   {"ignore_eos", true},
                                                                   {"temperature", 0},
                                                                   {"stream", streams}})));
    return clients;
  }
  void wait_until_running(int replicas, int64_t each) const {
    const auto runs = [&] {
      for (int replica = 0; replica < replicas; ++replica)
        if (metric_of(replica, "lfm2_num_requests_running") != each) return false;
      return true;
    };
    for (int i = 0; i < 2000 && !runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(runs()) << ask("GET", "/metrics").body;
  }
};

TEST_F(ServeReplicasTest, HaveTheBitsOfAJob) {
  const std::vector<Json> all = bodies(48), expected = answers_of_job(asked(all));
  ASSERT_EQ(expected.size(), all.size());
  for (const auto& [replicas, stages] : {std::pair{2, 1}, {2, 2}, {3, 1}, {3, 2}}) {
    SCOPED_TRACE(testing::Message() << replicas << " replicas of " << stages << " stages");
    start_replicas(replicas, stages);
    expect_answers(all, expected);
    for (int replica = 0; replica < replicas; ++replica)
      EXPECT_GT(metric_of(replica, "lfm2_generation_tokens_total"), 0) << replica;
    const Outcome outcome = end();
    EXPECT_NE(outcome.out.find(fmt::format(", {} times", replicas)), std::string::npos) << outcome.out;
    expect_named_replicas(outcome.out, replicas, all.size());
  }
}

TEST_F(ServeReplicasTest, BitsOfFiveHundredRequests) {
  const std::vector<Json> all = bodies(500);
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::vector<Json> expected = answers_of_job(asked(all), {}, dtype);
    for (const auto& [replicas, stages] : {std::pair{2, 1}, {2, 2}, {3, 1}, {3, 2}}) {
      SCOPED_TRACE(testing::Message() << dtype << ", " << replicas << " replicas of " << stages << " stages");
      start_replicas(replicas, stages, {}, dtype);
      EXPECT_GT(expect_answers(all, expected), 100 * 64);
      end();
    }
  }
}

// Every later turn of a conversation finds its prefix, wherever the first one went.
TEST_F(ServeReplicasTest, AConversationStaysWhereItsPrefixIs) {
  constexpr int kConversations = 6, kTurns = 3, kPages = 3;
  start_replicas(2, 1);
  for (int turn = 0; turn < kTurns; ++turn)
    for (int conversation = 0; conversation < kConversations; ++conversation) {
      Json prompt = Json::array();
      for (int id = 0; id < kPages * 64; ++id) prompt.push_back(10 + (id * (conversation + 3)) % 500);
      for (int id = 0; id <= turn; ++id) prompt.push_back(7);
      const HttpReply reply = ask("POST", "/v1/completions", json_text(Json{{"prompt", prompt}, {"max_tokens", 2}}));
      ASSERT_EQ(reply.status, 200) << reply.body;
      EXPECT_EQ(parse_json(reply.body, "answer")["usage"]["prompt_tokens_details"]["cached_tokens"],
                turn == 0 ? 0 : kPages * 64);
    }
  for (int replica = 0; replica < 2; ++replica)
    EXPECT_EQ(metric_of(replica, "lfm2_prefix_cache_hits_total"), kConversations / 2 * (kTurns - 1) * kPages * 64);
  EXPECT_GE(metric_of(1, "lfm2_request_queue_time_seconds_count"), kConversations / 2 * kTurns);
  end();
}

TEST_F(ServeReplicasTest, WhoLeavesFreesHisReplica) {
  start_replicas(2, 2);
  std::deque<HttpClient> clients = ask_for_long_answers(8, 900, true);
  wait_until_running(2, 4);
  for (HttpClient& client : clients) client.reset();
  EXPECT_TRUE(becomes_idle());
  EXPECT_LT(metric("lfm2_generation_tokens_total"), 8 * 900);
  for (int i = 0; i < 400 && metric("lfm2_cache_slots_used") != 0; ++i)  // up to a second old
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_EQ(metric("lfm2_cache_slots_used"), 0);
  EXPECT_EQ(ask("POST", "/v1/completions", R"({"prompt": [1, 2], "max_tokens": 3})").status, 200);
  end();
}

// More requests than slots: the queue is one for all replicas, and 429 comes as from a single one.
TEST_F(ServeReplicasTest, WaitInOneQueue) {
  start_replicas(2, 1, {"--max-num-seqs", "2", "--max-queue", "5"});
  int answered = 0, refused = 0;
  for (HttpClient& client : ask_for_long_answers(40, 900, false)) {
    const int status = client.reply().status;
    answered += status == 200 ? 1 : 0;
    refused += status == 429 ? 1 : 0;
  }
  EXPECT_EQ(answered + refused, 40);
  EXPECT_GE(answered, 5);
  EXPECT_GE(refused, 1);
  EXPECT_EQ(metric("lfm2_generation_tokens_total"), answered * 900);
  EXPECT_EQ(metric("lfm2_requests_total{result=\"refused\"}"), refused);
  for (int replica = 0; replica < 2; ++replica)
    EXPECT_GE(metric_of(replica, "lfm2_generation_tokens_total"), 2 * 900) << replica;
  end();
}

// Asked to end, all replicas let their requests end; without time they all stop.
TEST_F(ServeReplicasTest, EndTogether) {
  for (const bool in_time : {true, false}) {
    SCOPED_TRACE(in_time);
    start_replicas(2, 2, {"--drain-seconds", in_time ? "60" : "0"});
    std::deque<HttpClient> clients = ask_for_long_answers(4, in_time ? 150 : 900, false);
    wait_until_running(2, 2);
    server_->signal(SIGUSR1);
    for (HttpClient& client : clients) {
      const HttpReply reply = client.reply();
      EXPECT_EQ(reply.status, in_time ? 200 : 503) << reply.body;
      if (in_time) {
        EXPECT_EQ(parse_json(reply.body, "answer")["usage"]["completion_tokens"], 150);
      }
    }
    const Outcome outcome = server_->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("4 prompts, 16 tokens in all, 600 tokens generated") != std::string::npos, in_time)
        << outcome.out;
    server_.reset();
  }
}

// A rank that is stopped or killed ends all replicas, and is named.
class ServeReplicasStallTest : public ServeReplicasTest {};

TEST_F(ServeReplicasStallTest, ALostRankEndsAll) {
  constexpr int kRanks = 4;
  for (const int number : {SIGSTOP, SIGKILL})
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", signal " << number);
      start_replicas(2, 2, {"--timeout", "3"});
      std::deque<HttpClient> clients = ask_for_long_answers(4, 900, true);
      wait_until_running(2, 2);
      std::vector<pid_t> all;
      for (int of = 0; of < kRanks; ++of) all.push_back(server_->process_of(of));
      const auto begin = std::chrono::steady_clock::now();
      ASSERT_EQ(kill(all[static_cast<size_t>(rank)], number), 0);
      const Outcome outcome = server_->wait();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      EXPECT_LT(seconds.count(), 3 + 5);
      if (number == SIGSTOP) {
        EXPECT_EQ(outcome.exit_code, 76) << outcome.err;
        EXPECT_NE(outcome.err.find(fmt::format("(--timeout 3): rank {} ", rank)), std::string::npos) << outcome.err;
      } else {
        EXPECT_TRUE(outcome.exit_code == 76 || outcome.exit_code == 137) << outcome.exit_code << outcome.err;
      }
      const auto gone = [&] { return std::ranges::all_of(all, [](pid_t pid) { return kill(pid, 0) != 0; }); };
      for (int i = 0; i < 500 && !gone(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_TRUE(gone());
      server_.reset();
    }
}

}  // namespace
}  // namespace lfm2::test
