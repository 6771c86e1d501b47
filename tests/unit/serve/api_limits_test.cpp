// What one request may cost: memory, and the time of others.
#include "support/served_api.h"

namespace lfm2::serve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::http_request;
using test::HttpClient;
using test::HttpReply;

TEST_F(ApiTest, LargeBodiesDoNotDelayOthers) {
  listen({.max_body_bytes = 8 << 20});
  serve();
  drawer_.emplace(live_.replica(0));
  std::string ids = "1";
  while (ids.size() < (6 << 20)) ids += ",1";
  HttpClient large(listener_->address().port);
  large.send(http_request("POST", "/v1/completions", fmt::format(R"({{"prompt": [{}]}})", ids)));
  while (listener_->counts().body_bytes < ids.size()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 200);
  EXPECT_EQ(large.reply().status, 400);
}

// Echoed prompts with the log-probabilities of their tokens.
TEST_F(ApiTest, LargeAnswers) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  const auto echoed = [this](size_t tokens) {
    return ask(
        "POST", "/v1/completions",
        json_text(Json{{"prompt", std::vector<int>(tokens, 300)}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 0}}));
  };
  std::vector<std::thread> clients;
  for (size_t client = 0; client < 4; ++client)
    clients.emplace_back([&, client] {
      const size_t tokens = 40'000 + client;  // more than kLargeResponse
      const HttpReply reply = echoed(tokens);
      ASSERT_EQ(reply.status, 200) << reply.body;
      const Json probs = parse_json(reply.body, "answer")["choices"][0]["logprobs"];
      ASSERT_EQ(probs["token_logprobs"].size(), tokens + 1);
      EXPECT_EQ(probs["token_logprobs"][1], -2);
      EXPECT_EQ(probs["token_logprobs"][tokens], -1);
    });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 200);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(metrics_.requests_completed, 24);
  EXPECT_EQ(ask("POST", "/v1/completions", json_text(Json{{"prompt", std::vector<std::string>(129, "a")}})).status,
            400);
}

// Before it takes memory for what cannot be sent.
TEST_F(ApiTest, AnAnswerWithTooManyLogProbabilitiesEndsAtOnce) {
  max_scored_ = 50;
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  const HttpReply reply = ask("POST", "/v1/completions", R"({"prompt": [1], "max_tokens": 20, "logprobs": 0, "n": 4})");
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_NE(reply.body.find("more than 50 log-probabilities"), std::string::npos) << reply.body;
  EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 200);
}

// An answer that became an error is not counted as completed.
TEST_F(ApiTest, AnAnswerThatIsTooLarge) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  const std::vector<int32_t> prompt(99'000, longest_token());
  ASSERT_GT(90 * prompt.size() * text_.tokenizer().bytes(longest_token()).size(), http::Limits{}.max_answer_bytes);
  const HttpReply reply =
      ask("POST", "/v1/completions", json_text(Json{{"prompt", prompt}, {"max_tokens", 1}, {"n", 90}, {"echo", true}}));
  EXPECT_EQ(reply.status, 500) << reply.body.substr(0, 200);
  for (int i = 0; i < 1000 && metrics_.requests_failed == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(metrics_.requests_failed, 1);
  EXPECT_EQ(metrics_.requests_completed, 0);
}

TEST_F(ApiTest, TokenizingBeyondTheLargestAnswerIsRefused) {
  listen();
  serve();
  const auto error = [&](std::string_view path, const std::string& body) {
    const HttpReply reply = ask("POST", path, body);
    EXPECT_EQ(reply.status, 400) << reply.body.substr(0, 200);
    return reply.body;
  };
  std::string text, ids = "0";
  while (text.size() < 12 << 20) text += "qxzjkv";
  const std::string body = fmt::format(R"({{"prompt": "{}", "return_token_strs": true}})", text);
  EXPECT_NE(error("/tokenize", body).find("more than 64 MiB"), std::string::npos);
  const std::string longest = fmt::format(",{}", longest_token());
  while (ids.size() < 15 << 20) ids += longest;
  EXPECT_NE(error("/detokenize", fmt::format(R"({{"tokens": [{}]}})", ids)).find("more than 64 MiB"),
            std::string::npos);
  const Json answer = parse_json(
      ask("POST", "/tokenize", R"({"prompt": "a\n\"é", "add_special_tokens": false, "return_token_strs": true})").body,
      "answer");
  EXPECT_EQ(answer["count"], answer["tokens"].size());
  EXPECT_EQ(answer["token_strs"].size(), answer["tokens"].size());
  EXPECT_EQ(answer["token_strs"][0], "a");
}

// A fault in the writing of one answer is that answer's alone.
TEST_F(ApiTest, AnAnswerThatCannotBeWritten) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  const HttpReply reply =
      ask("POST", "/v1/completions", R"({"prompt": [1, 2, 3], "max_tokens": 1, "echo": true, "logprobs": 0})");
  EXPECT_EQ(reply.status, 500) << reply.body;
  EXPECT_EQ(metrics_.requests_failed, 1);
  EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 200);
}

TEST_F(ApiTest, TakesTooLong) {
  listen();
  serve(false, seconds(1));
  EXPECT_EQ(ask("POST", "/v1/completions", completion(10)).status, 504);
  EXPECT_EQ(live_.waiting(), 0);
}

// Whose template takes all the steps that it may.
class ApiSlowTemplateTest : public ApiTest {
 protected:
  ApiSlowTemplateTest() : ApiTest(with_template()) {}
  static std::filesystem::path with_template() {
    static const test::TemporaryFolder folder;
    test::write_bytes(folder / "tokenizer.json", test::read_bytes(test::golden_dir() / "text" / "tokenizer.json"));
    test::write_bytes(folder / "chat_template.jinja",
                      "{% set s = 'aB' * 500 %}{% for i in range(100000) %}{% for j in range(100000) %}"
                      "{% if s.find('BB') > 0 %}{% endif %}{% endfor %}{% endfor %}");
    return folder.path();
  }
};

TEST_F(ApiSlowTemplateTest, TheEndDoesNotWaitForIt) {
  listen();
  serve();
  const std::string body = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  std::vector<HttpClient> clients;
  for (const char* path : {"/tokenize", "/v1/chat/completions", "/tokenize"})
    clients.emplace_back(listener_->address().port).send(http_request("POST", path, body));
  while (listener_->counts().body_bytes < 3 * body.size()) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(50));  // until the first is rendered
  live_.drain();
  api_.reset();
  for (HttpClient& client : clients) {
    const HttpReply reply = client.reply();
    EXPECT_EQ(reply.status, 503);
    EXPECT_NE(reply.body.find("the server is ending"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(metrics_.requests_refused, 3);
}

}  // namespace
}  // namespace lfm2::serve
