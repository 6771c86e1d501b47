// The server under mpirun: what its clients get are the texts and bits of a job that has the same requests in a file,
// whoever else comes and goes.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>
#include <sstream>
#include <thread>

#include "stage/support/json.h"
#include "support/golden.h"
#include "support/http_client.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Arguments = std::vector<std::string>;

class ServeTest : public testing::Test {
 protected:
  void start(int ranks, const Arguments& more = {}, const std::string& dtype = "fp32") {
    Arguments command = mpi_command(ranks, LFM2_STAGE_PROGRAM);
    command.insert(command.end(), {"serve", "--threads", "1", "--weights", shards(ranks), "--port", "0",
                                   "--address-file", folder_ / "address", "--dtype", dtype});
    const Arguments machine = machine_options();
    command.insert(command.end(), machine.begin(), machine.end());
    command.insert(command.end(), more.begin(), more.end());
    std::filesystem::remove(folder_ / "address");
    server_.emplace(command);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(folder_ / "address") && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::string address = read_bytes(folder_ / "address");  // http://127.0.0.1:PORT
    port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  // Ends the server, which must not lose anything by it.
  Outcome end() {
    server_->signal(SIGUSR1);
    Outcome outcome = server_->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_LT(outcome.err.find("loading; http://"), outcome.err.find("serving on http://")) << outcome.err;
    server_.reset();
    return outcome;
  }
  static std::string shards(int ranks) { return golden_shards("kjv-moe", ranks == 2 ? 4 : ranks); }

  HttpReply ask(std::string_view method, std::string_view path, std::string_view body = {},
                std::string_view fields = {}) const {
    HttpClient client(port_);
    client.send(http_request(method, path, body, fields));
    return client.reply();
  }
  Json get(std::string_view path) const { return parse_json(ask("GET", path).body, "answer"); }
  // The number behind a name in the metrics.
  int64_t metric(const std::string& name) const {
    const std::string text = ask("GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 2));
  }
  // The answers of a job that has these bodies in a file, each with the path that it is for.
  std::vector<Json> answers_of_job(const std::vector<std::pair<std::string, Json>>& asked, const std::string& dtype) {
    std::string lines;
    for (size_t i = 0; i < asked.size(); ++i)
      lines += json_text(Json{{"custom_id", std::to_string(i)},
                              {"method", "POST"},
                              {"url", asked[i].first},
                              {"body", asked[i].second}}) +
               "\n";
    write_bytes(folder_ / "in.jsonl", lines);
    const Outcome job = run_stage(1, {"--weights", shards(1), "--dtype", dtype, "--input", folder_ / "in.jsonl",
                                      "--output", folder_ / "out.jsonl"});
    EXPECT_EQ(job.exit_code, 0) << job.err;
    std::vector<Json> expected;
    std::istringstream answers(read_bytes(folder_ / "out.jsonl"));
    for (std::string line; std::getline(answers, line);)
      expected.push_back(parse_json(line, "answer")["response"]["body"]);
    EXPECT_EQ(expected.size(), asked.size());
    std::filesystem::remove(folder_ / "out.jsonl");
    return expected;
  }
  bool becomes_idle() const {
    for (int i = 0; i < 400; ++i) {
      if (metric("lfm2_num_requests_running") == 0 && metric("lfm2_num_requests_waiting") == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    return false;
  }

  TemporaryFolder folder_;
  std::optional<RunningProgram> server_;
  uint16_t port_ = 0;
};

// Bodies of all kinds, the same for the server and for a file of batch lines.
std::vector<Json> bodies(int count) {
  std::mt19937 random(5);
  std::vector<Json> bodies;
  for (int i = 0; i < count; ++i) {
    Json body{{"prompt", Json::array()}, {"max_tokens", 1 + random() % 40}, {"seed", i}, {"temperature", i % 3 * 0.6}};
    for (size_t left = 1 + random() % (i % 7 == 0 ? 300 : 20); left > 0; --left)
      body["prompt"].push_back(random() % 900);
    if (i % 2 == 0) body["logprobs"] = i % 5;
    if (i % 4 == 1) body["n"] = 2;
    if (i % 5 == 2) body["stop"] = {" the", "."};
    if (i % 5 == 3)
      body.update({{"min_p", 0.1}, {"repetition_penalty", 1.2}, {"frequency_penalty", 0.3}, {"top_k", 40}});
    bodies.push_back(std::move(body));
  }
  return bodies;
}

// Clients that leave in the middle of their answers, until `over`.
void leave_answers(uint16_t port, const std::atomic<bool>& over, const std::string& body) {
  std::mt19937 random(3);
  while (!over) {
    HttpClient client(port);
    client.send(http_request("POST", "/v1/completions", body));
    if (random() % 2 == 0) client.read_some(std::chrono::milliseconds(random() % 30));
    client.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
  }
}

// What a server says beyond a job: how many tokens of the prompts the prefix cache had.
int64_t take_cached_tokens(Json& usage) {
  const int64_t cached = usage.at("prompt_tokens_details").at("cached_tokens");
  usage.erase("prompt_tokens_details");
  return cached;
}

// The choices of a streamed answer, put together.
Json joined(const std::string& events, Json& usage) {
  std::map<int, Json> choices;
  std::istringstream lines(events);
  bool done = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line == "data: [DONE]") {
      done |= !line.empty();
      continue;
    }
    EXPECT_FALSE(done);
    const Json chunk = parse_json(line.substr(6), "event");
    if (chunk["choices"].empty()) usage = chunk["usage"];
    for (const Json& one : chunk["choices"]) {
      const auto [whole, is_new] = choices.try_emplace(one["index"].get<int>(), one);
      if (is_new) continue;
      Json& sum = whole->second;
      sum["text"] = sum["text"].get<std::string>() + one["text"].get<std::string>();
      sum["finish_reason"] = one["finish_reason"];
      if (!one["logprobs"].is_null())
        for (const auto& [key, list] : one["logprobs"].items())
          for (const Json& value : list) sum["logprobs"][key].push_back(value);
    }
  }
  EXPECT_TRUE(done) << events;
  Json list = Json::array();
  for (const auto& [index, choice] : choices) list.push_back(choice);
  return list;
}

TEST_F(ServeTest, TheBitsOfAJobWhoeverComesAndGoes) {
  const std::vector<Json> all = bodies(48);
  std::vector<std::pair<std::string, Json>> asked;
  for (const Json& body : all) asked.emplace_back("/v1/completions", body);
  const std::vector<Json> expected = answers_of_job(asked, "fp32");
  ASSERT_EQ(expected.size(), all.size());

  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    start(ranks);
    std::vector<Json> found(all.size()), usage(all.size());
    std::atomic<size_t> next = 0;
    std::atomic<bool> over = false;
    std::vector<std::thread> clients;
    for (int client = 0; client < 12; ++client)
      clients.emplace_back([&] {
        for (size_t i = 0; (i = next++) < all.size();) {
          Json body = all[i];
          if (i % 3 == 0) body.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
          const HttpReply reply = ask("POST", "/v1/completions", json_text(body));
          EXPECT_EQ(reply.status, 200) << reply.body;
          if (i % 3 == 0) {
            found[i] = joined(reply.body, usage[i]);
          } else {
            const Json answer = parse_json(reply.body, "answer");
            found[i] = answer["choices"];
            usage[i] = answer["usage"];
          }
        }
      });
    std::thread rude(leave_answers, port_, std::cref(over),
                     R"({"prompt": "In the", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 2})");
    for (std::thread& client : clients) client.join();
    over = true;
    rude.join();
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(json_text(found[i]), json_text(expected[i]["choices"])) << i;
      take_cached_tokens(usage[i]);
      EXPECT_EQ(usage[i], expected[i]["usage"]) << i;
    }
    EXPECT_TRUE(becomes_idle());
    const Outcome outcome = end();
    EXPECT_EQ(outcome.out.find("In the"), std::string::npos) << "the access log has no texts";
  }
}

// Conversations whose turns are written when the answers before them are known, and prompts that begin alike.
class Conversations {
 public:
  static constexpr size_t kCount = 6, kTurns = 6;
  static std::string path(size_t conversation) {
    return conversation % 3 == 2 ? "/v1/completions" : "/v1/chat/completions";
  }
  // The body of a turn, from that of the turn before and its answer.
  static Json next(size_t conversation, size_t turn, const Json& before, const Json& answer) {
    static const std::vector<std::string> kSaid{"And God said, Let there be light", "and there was light.",
                                                "And the LORD spake unto Moses, saying,", "In the beginning", "Selah."};
    Json body = turn > 0 ? before : Json{{"temperature", static_cast<double>(conversation % 3) * 0.6}};
    if (path(conversation) == "/v1/completions") {
      Json& prompt = turn > 0 ? body["prompt"] : body["prompt"] = Json::array();
      for (int id = 10; turn == 0 && id < 80; ++id) prompt.push_back(id);
      for (size_t id = 0; id < 7 + turn; ++id) prompt.push_back(100 * conversation + 20 * turn + id);
      body["logprobs"] = 2;
    } else {
      Json& messages = turn > 0 ? body["messages"] : body["messages"] = Json::array();
      if (turn > 0) messages.push_back(answer["choices"][0]["message"]);
      if (turn > 0) messages.back().erase("refusal");
      messages.push_back({{"role", "user"}, {"content", kSaid[(turn + conversation / 3) % kSaid.size()]}});
      body.update({{"logprobs", true}, {"top_logprobs", 2}});
    }
    body.update({{"max_tokens", 5 + 7 * turn % 23}, {"seed", 10 * conversation + turn}});
    if (conversation % 2 == 1) body["repetition_penalty"] = 1.3;
    body["n"] = turn % 4 == 3 ? 2 : 1;
    return body;
  }
};

// Few pages, so that kept ones must give way to others: as many as the longest texts of two sequences fill.
constexpr int64_t kFewPositions = 2 * 448;
const Arguments kFewPages{"--max-sequences", "2", "--cache-page", "16", "--max-length", "448"};

class PrefixCacheServeTest : public ServeTest, public testing::WithParamInterface<const char*> {};

TEST_P(PrefixCacheServeTest, ChangesNothing) {
  const std::string dtype = GetParam();
  std::vector<std::pair<std::string, Json>> asked;
  std::vector<Json> computed;
  start(4, {"--no-prefix-cache"}, dtype);
  for (size_t conversation = 0; conversation < Conversations::kCount; ++conversation)
    for (size_t turn = 0; turn < Conversations::kTurns; ++turn) {
      const Json before = turn > 0 ? asked.back().second : Json(), answer = turn > 0 ? computed.back() : Json();
      asked.emplace_back(Conversations::path(conversation), Conversations::next(conversation, turn, before, answer));
      const HttpReply reply = ask("POST", asked.back().first, json_text(asked.back().second));
      ASSERT_EQ(reply.status, 200) << reply.body;
      computed.push_back(parse_json(reply.body, "answer"));
      EXPECT_EQ(take_cached_tokens(computed.back()["usage"]), 0);
    }
  EXPECT_EQ(metric("lfm2_prefix_cache_hits_total"), 0);
  end();
  const std::vector<Json> expected = answers_of_job(asked, dtype);
  ASSERT_EQ(expected.size(), asked.size());
  for (size_t i = 0; i < asked.size(); ++i)
    for (const char* part : {"choices", "usage"}) EXPECT_EQ(computed[i][part], expected[i][part]) << i;
  int64_t positions = 0;  // that all conversations would fill
  for (size_t turn = Conversations::kTurns - 1; turn < asked.size(); turn += Conversations::kTurns)
    positions += expected[turn]["usage"]["prompt_tokens"].get<int64_t>();
  EXPECT_GT(positions, kFewPositions + 100);

  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    start(ranks, kFewPages, dtype);
    std::atomic<int64_t> cached = 0;
    std::atomic<bool> over = false;
    std::thread rude(leave_answers, port_, std::cref(over),
                     R"({"prompt": "And God said, Let there be light", "max_tokens": 90, "ignore_eos": true})");
    std::vector<std::thread> clients;
    for (size_t conversation = 0; conversation < Conversations::kCount; ++conversation)
      clients.emplace_back([&, conversation] {
        for (size_t turn = 0; turn < Conversations::kTurns; ++turn) {
          const size_t i = conversation * Conversations::kTurns + turn;
          Json answer = parse_json(ask("POST", asked[i].first, json_text(asked[i].second)).body, "answer");
          ASSERT_TRUE(answer.contains("usage")) << json_text(answer);
          cached += take_cached_tokens(answer["usage"]);
          for (const char* part : {"choices", "usage"}) EXPECT_EQ(answer[part], expected[i][part]) << i;
        }
      });
    for (std::thread& client : clients) client.join();
    over = true;
    rude.join();
    EXPECT_GT(cached, 1000);
    EXPECT_GE(metric("lfm2_prefix_cache_hits_total"), cached);
    EXPECT_TRUE(becomes_idle());
    end();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PrefixCacheServeTest, testing::Values("fp32", "bf16"),
                         [](const auto& one) { return std::string(one.param); });

TEST_F(ServeTest, RoutesAndRefusals) {
  start(2, {"--model-name", "bible", "--max-queue", "3", "--max-length", "700"});
  const Json models = get("/v1/models");
  EXPECT_EQ(models["data"][0]["id"], "bible");
  EXPECT_EQ(models["data"][0]["root"], "bible");
  EXPECT_EQ(models["data"][0]["max_model_len"], 700);
  EXPECT_EQ(get("/v1/models/bible"), models["data"][0]);
  EXPECT_EQ(ask("GET", "/v1/models/koran").status, 404);
  EXPECT_EQ(get("/tokenizer_info")["bos_token"], "<|startoftext|>");
  EXPECT_EQ(get("/tokenizer_info")["eos_token"], "<|endoftext|>");
  EXPECT_EQ(get("/health")["status"], "ok");
  EXPECT_FALSE(get("/version")["version"].get<std::string>().empty());
  const Json ids = parse_json(ask("POST", "/tokenize", R"({"prompt": "In the beginning"})").body, "ids");
  EXPECT_EQ(ids["count"], ids["tokens"].size());
  const Json bare = parse_json(
      ask("POST", "/tokenize", R"({"prompt": "In the beginning", "add_special_tokens": false})").body, "ids");
  EXPECT_EQ(bare["tokens"].size() + 1, ids["tokens"].size());
  const Json text = parse_json(ask("POST", "/detokenize", json_text(Json{{"tokens", bare["tokens"]}})).body, "text");
  EXPECT_EQ(text["prompt"], "In the beginning");
  for (const auto& [path, body, status] : {std::tuple{"/v1/completions", "nonsense", 400},
                                           {"/v1/completions", R"({"prompt": "a", "best_of": 2})", 400},
                                           {"/v1/completions", R"({"prompt": "a", "n": 4})", 429},
                                           {"/v1/chat/completions", R"({"messages": []})", 400},
                                           {"/v1/nothing", "{}", 404},
                                           {"/health", "{}", 405}}) {
    const HttpReply reply = ask("POST", path, body);
    EXPECT_EQ(reply.status, status) << path << " " << body << reply.body;
    EXPECT_FALSE(parse_json(reply.body, "error")["error"]["message"].get<std::string>().empty());
  }
  // A running request ends as it would have: the server waits for it.
  HttpClient last(port_);
  last.send(http_request("POST", "/v1/completions",
                         R"({"prompt": "In the", "max_tokens": 300, "ignore_eos": true, "temperature": 0})"));
  while (metric("lfm2_num_requests_running") != 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server_->signal(SIGUSR1);
  const HttpReply reply = last.reply();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(parse_json(reply.body, "answer")["usage"]["completion_tokens"], 300);
  EXPECT_EQ(server_->wait().exit_code, 0);
}

// What has no time to end gets an error, and the server has still done what it was asked to.
TEST_F(ServeTest, EndsWithinItsTime) {
  start(4, {"--drain-seconds", "0"});
  HttpClient stream(port_);
  stream.send(http_request("POST", "/v1/completions",
                           R"({"prompt": "In the", "max_tokens": 900, "ignore_eos": true, "n": 16, "stream": true})"));
  while (metric("lfm2_num_requests_running") == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server_->signal(SIGUSR1);
  const HttpReply reply = stream.reply();
  EXPECT_TRUE(reply.whole);
  EXPECT_NE(reply.body.find("the server is ending"), std::string::npos) << reply.body.substr(0, 500);
  EXPECT_EQ(server_->wait().exit_code, 0);
}

TEST_F(ServeTest, Keys) {
  write_bytes(folder_ / "keys", "first-key\n\nsecond-key\r\n");
  start(1, {"--api-key-file", folder_ / "keys"});
  EXPECT_EQ(ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", {}, "Authorization: Bearer first-ke\r\n").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", {}, "Authorization: Bearer second-key\r\n").status, 200);
  EXPECT_EQ(ask("GET", "/health").status, 200);
  // A second server on this port ends before it loads anything, and leaves the address of nobody behind.
  write_bytes(folder_ / "other", "http://127.0.0.1:1\n");
  Arguments command = mpi_command(1, LFM2_STAGE_PROGRAM);
  command.insert(command.end(), {"serve", "--weights", shards(1), "--port", std::to_string(port_), "--address-file",
                                 folder_ / "other"});
  const Outcome second = run_program(command);
  EXPECT_EQ(second.exit_code, 69) << second.err;
  EXPECT_NE(second.err.find("bind failed"), std::string::npos) << second.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
  end();
}

}  // namespace
}  // namespace lfm2::test
