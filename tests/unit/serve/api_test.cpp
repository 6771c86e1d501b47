// What the API answers, and what it counts and logs.
#include <random>

#include "support/served_api.h"

namespace lfm2::serve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::http_request;
using test::HttpClient;
using test::HttpReply;

TEST_F(ApiTest, SaysThatItLoads) {
  listen({.api_keys = {"key"}});
  EXPECT_EQ(ask("GET", "/health").status, 503);
  EXPECT_NE(ask("GET", "/health").body.find("loading"), std::string::npos);
  EXPECT_EQ(ask("GET", "/").status, 503);
  EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 401);
  {
    HttpClient client(listener_->address().port);
    client.send(http_request("POST", "/v1/completions", completion(1), "Authorization: Bearer key\r\n"));
    const HttpReply reply = client.reply();
    EXPECT_EQ(reply.status, 503);
    EXPECT_TRUE(reply.headers.contains("retry-after"));
  }
  HttpClient kept(listener_->address().port);  // a connection of before
  kept.send(http_request("GET", "/health"));
  EXPECT_EQ(kept.reply().status, 503);
  serve();
  kept.send(http_request("GET", "/health"));
  EXPECT_EQ(kept.reply().status, 200);
}

TEST_F(ApiTest, ClientsThatStayAndClientsThatGo) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  std::vector<std::thread> clients;
  std::atomic<int> whole = 0;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      for (int round = 0; round < 12; ++round) {
        HttpClient client(listener_->address().port);
        if (i % 2 == 0) {
          client.send(http_request("POST", "/v1/completions", completion(20, round % 2 == 0)));
          const HttpReply reply = client.reply();
          whole += reply.status == 200 && reply.whole;
          continue;
        }
        client.send(http_request("POST", "/v1/completions", completion(100'000, true)));
        if (random() % 2 == 0) client.read_some(milliseconds(random() % 30));
        client.reset();
      }
    });
  for (int i = 0; i < 30; ++i) EXPECT_EQ(ask("GET", "/metrics").status, 200);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(whole, 48);
  const auto settled = [&] {  // a request counts as completed just behind its last byte
    return live_.running() + live_.waiting() == 0 && metrics_.requests_completed == whole;
  };
  for (int i = 0; i < 2000 && !settled(); ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(live_.running() + live_.waiting(), 0);
  EXPECT_EQ(metrics_.requests_completed, 48);
  EXPECT_GT(metrics_.requests_aborted, 0);  // those that went before they were heard are not counted
  EXPECT_LE(metrics_.requests_aborted, 48);
}

TEST_F(ApiTest, WithoutATokenizerThereAreTokenIdsAlone) {
  has_text_ = false;
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  const auto choice = [&](const std::string& body) {
    const HttpReply reply = ask("POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return parse_json(reply.body, "answer")["choices"].back();
  };
  const Json ids = Json::array({Drawer::kToken, Drawer::kToken});
  const Json last = choice(R"({"prompt": [[1], [2, 3]], "max_tokens": 2, "logprobs": 0, "echo": true})");
  EXPECT_EQ(last["text"], "");
  EXPECT_EQ(last["token_ids"], ids);
  EXPECT_EQ(last["logprobs"]["tokens"], Json::array({"token_id:2", "token_id:3", "token_id:300", "token_id:300"}));
  EXPECT_EQ(streamed_ids("/v1/completions", {{"prompt", {1}}, {"max_tokens", 2}}), std::pair(ids, 2));
  for (const auto& [path, body] : {std::pair{"/v1/completions", R"({"prompt": "a"})"},
                                   {"/v1/completions", R"({"prompt": [1], "stop": "a"})"},
                                   {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})"},
                                   {"/v1/embeddings", R"({"input": "a"})"},
                                   {"/tokenize", R"({"prompt": "a"})"},
                                   {"/detokenize", R"({"tokens": [1]})"}}) {
    const HttpReply reply = ask("POST", path, body);
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_NE(reply.body.find("no tokenizer"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(ask("GET", "/tokenizer_info").status, 404);
  EXPECT_TRUE(parse_json(ask("GET", "/v1/models").body, "models")["data"][0].at("tokenizer").is_null());
}

TEST_F(ApiTest, WhatRunsAtTheEndGetsAnError) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  HttpClient stream(listener_->address().port), whole(listener_->address().port);
  stream.send(http_request("POST", "/v1/completions", completion(100'000, true)));
  whole.send(http_request("POST", "/v1/completions", completion(100'000)));
  while (live_.running() < 2) std::this_thread::sleep_for(milliseconds(1));
  live_.drain();
  EXPECT_EQ(ask("GET", "/health").status, 503);
  EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 503);
  EXPECT_EQ(metrics_.requests_refused, 1);
  std::thread reader([&] {
    const HttpReply reply = stream.reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.whole);
    EXPECT_NE(reply.body.find("the server is ending"), std::string::npos);
  });
  api_.reset();
  reader.join();
  EXPECT_EQ(whole.reply().status, 503);
}

// Much faster than any client reads: 3.4 MB, with a token in each event, would be more than a stream may leave unsent.
TEST_F(ApiTest, AClientThatFallsBehindGetsTheWholeStream) {
  constexpr int kChoices = 20, kTokens = 1000;
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  HttpClient client(listener_->address().port, 4096);
  client.send(http_request("POST", "/v1/completions",
                           json_text(Json{{"prompt", "Hello"},
                                          {"max_tokens", kTokens},
                                          {"n", kChoices},
                                          {"stream", true},
                                          {"stream_options", {{"include_usage", true}}}})));
  const auto drawn = [this] { return replica_metrics_.generated_tokens == int64_t{kChoices} * kTokens; };
  for (int i = 0; i < 4000 && !drawn() && metrics_.requests_aborted == 0; ++i)
    std::this_thread::sleep_for(milliseconds(5));
  ASSERT_TRUE(drawn()) << metrics_.requests_aborted << " aborted";
  live_.drain();
  HttpReply reply;
  std::thread reader([&] { reply = client.reply(); });
  api_.reset();
  reader.join();
  EXPECT_TRUE(reply.whole);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
  std::vector<size_t> ends(kChoices);
  std::vector<std::string> texts(kChoices);
  std::istringstream lines(reply.body);
  for (std::string line; std::getline(lines, line) && line != "data: [DONE]";) {
    if (line.empty()) continue;
    const Json event = parse_json(line.substr(std::string_view("data: ").size()), "event");
    for (const Json& choice : event["choices"]) {
      const size_t index = choice["index"].get<size_t>();
      EXPECT_EQ(ends[index], 0u) << "behind its end";
      texts[index] += choice["text"].get<std::string>();
      ends[index] += choice["finish_reason"] == "length";
    }
  }
  std::string text;
  for (int i = 0; i < kTokens; ++i) text += text_.tokenizer().bytes(Drawer::kToken);
  EXPECT_EQ(texts, std::vector(kChoices, text));
  EXPECT_EQ(ends, std::vector<size_t>(kChoices, 1));
}

TEST_F(ApiTest, TextsAreLoggedWhereAskedForAlone) {
  for (const bool asked : {false, true}) {
    listen();
    serve(asked);
    EXPECT_EQ(ask("POST", "/v1/completions", R"({"prompt": "secret", "stop": 5})").status, 400);
    const std::string log = end();
    EXPECT_EQ(log.find("secret") != std::string::npos, asked) << log;
    EXPECT_NE(log.find("\"status\":400"), std::string::npos) << log;
    if (!asked) continue;
    const Json line = parse_json(log.substr(0, log.find('\n')), "log");
    EXPECT_EQ(line["path"], "/v1/completions");
    EXPECT_EQ(line["body"], R"({"prompt": "secret", "stop": 5})");
    listen();
    serve(asked);
    const std::string body = "{\"\xc2\x9b\xe2\x80\xae\x7f\xc3\xa9\": 1}";
    EXPECT_EQ(ask("POST", "/v1/completions", body).status, 400);
    const std::string controls = end();
    EXPECT_NE(controls.find("\\u009b\\u202e\\u007f\xc3\xa9"), std::string::npos) << controls;
    EXPECT_EQ(parse_json(controls.substr(0, controls.find('\n')), "log")["body"], body);
  }
}

TEST_F(ApiTest, ErrorsDoNotTellWhereTheModelLies) {
  listen();
  serve();
  const HttpReply reply = ask("POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("chat_template.jinja"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.body.find("golden"), std::string::npos) << reply.body;
}

TEST_F(ApiTest, Figures) {
  listen();
  serve();
  replica_metrics_.stage_seconds.set(1, 2.5, 4);
  replica_metrics_.stage_seconds.set(1, 2.6,
                                     4);  // a step that was running ended: less was idle, but counters do not fall
  const std::string text = ask("GET", "/metrics").body;
  for (const char* line :
       {"lfm2_connections 1\n", "lfm2_log_dropped_lines_total 0\n",
        "lfm2_stage_busy_seconds_total{stage=\"1\"} 2.600\n", "lfm2_stage_idle_seconds_total{stage=\"1\"} 1.500\n",
        "lfm2_stage_busy_seconds_total{stage=\"0\"} 0.000\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

}  // namespace
}  // namespace lfm2::serve
