// The server's threads over real connections, with a thread in the place of the pipeline that draws what it likes.
#include "serve/api.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "stage/support/json.h"
#include "support/golden.h"
#include "support/http_client.h"
#include "support/shards.h"
#include "support/weights_support.h"
#include "text/text_model.h"

namespace lfm2::serve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::http_request;
using test::HttpClient;
using test::HttpReply;

// Draws the token kToken for each sequence in turn, up to its limit, or the tokens of `text`, the last of which ends
// the text; the log-probability of each token of a prompt is -2, and those of a prompt of three tokens are too few.
class Drawer {
 public:
  static constexpr int32_t kToken = 300;

  explicit Drawer(RequestSource& source, std::vector<int32_t> text = {})
      : text_(std::move(text)), thread_([this, &source] { run(source); }) {}
  ~Drawer() {
    ends_ = true;
    thread_.join();
  }

 private:
  void run(RequestSource& source) {
    std::unordered_map<int32_t, int64_t> left;  // tokens of each sample
    while (!ends_) {
      for (const int32_t sample : source.taken_back()) left.erase(sample);
      std::unordered_map<int32_t, TokenLogProbs> scored;
      while (std::optional<Request> request = source.next()) {
        left[request->sample] = text_.empty() ? request->max_new : std::ssize(text_);
        const size_t tokens = request->prompt.size();
        if (request->prompt_log_probs) scored[request->sample].log_probs.assign(tokens == 3 ? 1 : tokens - 1, -2.0f);
      }
      std::vector<SampleToken> drawn;
      for (auto at = left.begin(); at != left.end();) {
        DrawnToken token{.token = kToken, .log_prob = -1};
        if (const auto found = scored.find(at->first); found != scored.end()) token.prompt = found->second;
        if (!text_.empty()) token.token = text_[text_.size() - static_cast<size_t>(at->second)];
        if (--at->second == 0) token.ends = text_.empty() ? FinishReason::kLength : FinishReason::kStop;
        drawn.push_back({at->first, token});
        at = at->second == 0 ? left.erase(at) : std::next(at);
      }
      source.drawn(std::move(drawn));
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  const std::vector<int32_t> text_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

class ApiTest : public testing::Test {
 protected:
  explicit ApiTest(const std::filesystem::path& text = test::golden_dir() / "text") : text_(TextModel::open(text)) {
    EXPECT_EQ(::pipe(log_ends_), 0);
  }
  ~ApiTest() override {
    close_all();  // the log's thread writes until then
    for (const int end : log_ends_) ::close(end);
  }
  void listen(const ListenerSettings& settings = {}) {
    log_.emplace(log_ends_[1]);
    listener_.emplace(settings, &*log_);
  }
  void serve(bool log_requests = false, seconds timeout = seconds(60)) {
    ApiSettings settings{.model_name = "model",
                         .version = "1",
                         .max_queue = 100,
                         .request_timeout = timeout,
                         .limits = {.max_prompt_tokens = 100'000, .max_edits = 8, .max_scored = max_scored_},
                         .lines = {.vocab = 1280,
                                   .max_positions = 100'000,
                                   .text = has_text_ ? &text_ : nullptr,
                                   .text_error = "no tokenizer",
                                   .continues = true},
                         .log_requests = log_requests};
    api_.emplace(std::move(settings), live_, metrics_, *listener_);
  }
  // What the log has so far, once everything is closed.
  std::string end() {
    close_all();
    std::string text(64 << 10, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(log_ends_[0], text.data(), text.size()))));
    return text;
  }
  void close_all() {
    api_.reset();
    drawer_.reset();
    listener_.reset();
    log_.reset();
  }
  HttpReply ask(std::string_view method, std::string_view path, std::string_view body = {}) const {
    HttpClient client(listener_->address().port);
    client.send(http_request(method, path, body));
    return client.reply();
  }
  // The token ids of a streamed answer, and how many pieces have some.
  std::pair<Json, int> streamed_ids(std::string_view path, Json body) const {
    body["stream"] = true;
    std::pair<Json, int> found{Json::array(), 0};
    std::istringstream lines(ask("POST", path, json_text(body)).body);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("data: {")) continue;
      const Json ids = parse_json(line.substr(6), "chunk")["choices"][0].value("token_ids", Json::array());
      found.second += ids.empty() ? 0 : 1;
      found.first.insert(found.first.end(), ids.begin(), ids.end());
    }
    return found;
  }
  int32_t longest_token() const {
    const Tokenizer& tokenizer = text_.tokenizer();
    int32_t longest = 0;
    for (int32_t id = 0; static_cast<size_t>(id) < tokenizer.size(); ++id)
      if (tokenizer.bytes(id).size() > tokenizer.bytes(longest).size()) longest = id;
    return longest;
  }
  static std::string completion(int tokens, bool stream = false) {
    return fmt::format(R"({{"prompt": "Hello", "max_tokens": {}, "stream": {}}})", tokens, stream);
  }

  const TextModel text_;
  int log_ends_[2] = {-1, -1};
  Metrics metrics_;
  LiveRequests live_{100, metrics_};
  std::optional<LogWriter> log_;
  std::optional<Listener> listener_;
  std::optional<Drawer> drawer_;
  std::optional<Api> api_;
  bool has_text_ = true;
  int64_t max_scored_ = RequestLimits{}.max_scored;
};

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
  drawer_.emplace(live_);
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

TEST_F(ApiTest, LargeBodiesDoNotDelayOthers) {
  listen({.max_body_bytes = 8 << 20});
  serve();
  drawer_.emplace(live_);
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
  drawer_.emplace(live_);
  const auto echoed = [this](size_t tokens) {
    return ask(
        "POST", "/v1/completions",
        json_text(Json{{"prompt", std::vector<int>(tokens, 300)}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 0}}));
  };
  std::vector<std::thread> clients;
  for (size_t client = 0; client < 4; ++client)
    clients.emplace_back([&, client] {
      const size_t tokens = 40'000 + client;  // more than kLargeAnswer
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

TEST_F(ApiTest, WithoutATokenizerThereAreTokenIdsAlone) {
  has_text_ = false;
  listen();
  serve();
  drawer_.emplace(live_);
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

// Before it takes memory for what cannot be sent.
TEST_F(ApiTest, AnAnswerWithTooManyLogProbabilitiesEndsAtOnce) {
  max_scored_ = 50;
  listen();
  serve();
  drawer_.emplace(live_);
  const HttpReply reply = ask("POST", "/v1/completions", R"({"prompt": [1], "max_tokens": 20, "logprobs": 0, "n": 4})");
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_NE(reply.body.find("more than 50 log-probabilities"), std::string::npos) << reply.body;
  EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 200);
}

// An answer that became an error is not counted as completed.
TEST_F(ApiTest, AnAnswerThatIsTooLarge) {
  listen();
  serve();
  drawer_.emplace(live_);
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
  drawer_.emplace(live_);
  const HttpReply reply =
      ask("POST", "/v1/completions", R"({"prompt": [1, 2, 3], "max_tokens": 1, "echo": true, "logprobs": 0})");
  EXPECT_EQ(reply.status, 500) << reply.body;
  EXPECT_EQ(metrics_.requests_failed, 1);
  EXPECT_EQ(ask("POST", "/v1/completions", completion(1)).status, 200);
}

TEST_F(ApiTest, WhatRunsAtTheEndGetsAnError) {
  listen();
  serve();
  drawer_.emplace(live_);
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
  drawer_.emplace(live_);
  HttpClient client(listener_->address().port, 4096);
  client.send(http_request("POST", "/v1/completions",
                           json_text(Json{{"prompt", "Hello"},
                                          {"max_tokens", kTokens},
                                          {"n", kChoices},
                                          {"stream", true},
                                          {"stream_options", {{"include_usage", true}}}})));
  const auto drawn = [this] { return metrics_.generated_tokens == int64_t{kChoices} * kTokens; };
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

TEST_F(ApiTest, TakesTooLong) {
  listen();
  serve(false, seconds(1));
  EXPECT_EQ(ask("POST", "/v1/completions", completion(10)).status, 504);
  EXPECT_EQ(live_.waiting(), 0);
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
  metrics_.stage_seconds.set(1, 2.5, 4);
  metrics_.stage_seconds.set(1, 2.6, 4);  // a step that was running ended: less was idle, but counters do not fall
  const std::string text = ask("GET", "/metrics").body;
  for (const char* line :
       {"lfm2_connections 1\n", "lfm2_log_dropped_lines_total 0\n",
        "lfm2_stage_busy_seconds_total{stage=\"1\"} 2.600\n", "lfm2_stage_idle_seconds_total{stage=\"1\"} 1.500\n",
        "lfm2_stage_busy_seconds_total{stage=\"0\"} 0.000\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

// A tokenizer with the tokens of tool calls, and a chat template.
class ApiToolsTest : public ApiTest {
 protected:
  ApiToolsTest() : ApiTest(with_tools()) {}
  static std::filesystem::path with_tools() {
    static const test::TemporaryFolder folder;
    std::string json = test::read_bytes(test::golden_dir() / "text" / "tokenizer.json");
    for (const auto& [from, to] :
         {std::pair{"\"<|im_start|>\"", "\"<|tool_call_start|>\""}, {"\"<|im_end|>\"", "\"<|tool_call_end|>\""}})
      for (size_t at = 0; (at = json.find(from, at)) != std::string::npos;)
        json.replace(at, std::string_view(from).size(), to);
    test::write_bytes(folder / "tokenizer.json", json);
    test::write_bytes(folder / "chat_template.jinja", "{{ messages[-1]['content'] }}");
    return folder.path();
  }
  // The message of an answer in which the model draws these texts, calls of tools among them.
  Json message(const std::vector<std::string>& texts, const std::string& stop) {
    const Tokenizer& tokenizer = text_.tokenizer();
    std::vector<int32_t> ids;
    for (const std::string& text : texts) tokenizer.encode(text, false, ids);
    drawer_.emplace(live_, ids);
    const HttpReply reply = ask("POST", "/v1/chat/completions",
                                json_text(Json{{"messages", Json::parse(R"([{"role": "user", "content": "Hello"}])")},
                                               {"tools", Json::parse(R"([{"type": "function"}])")},
                                               {"stop", stop}}));
    drawer_.reset();
    return parse_json(reply.body, "answer")["choices"][0]["message"];
  }
};

TEST_F(ApiToolsTest, WhatIsNoCallIsTextUpToTheStopText) {
  listen();
  serve();
  EXPECT_EQ(message({"Well. ", "<|tool_call_start|>", "[f(a=1)]", "<|tool_call_end|>"}, "and")["content"], "Well. ");
  EXPECT_EQ(message({"Well. ", "<|tool_call_start|>", "no call and"}, "and")["content"], "Well. no call ");
  EXPECT_EQ(message({"Well. ", "<|tool_call_start|>", "no call", "<|tool_call_end|>", " but"}, "and")["content"],
            "Well. no call but");
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
                      "{% if s.count('b') %}{% endif %}{% endfor %}{% endfor %}");
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

TEST_F(ApiToolsTest, TokenIdsWhereTheyAreAskedFor) {
  listen();
  serve();
  drawer_.emplace(live_);
  const Json ids(std::vector<int32_t>(3, Drawer::kToken));
  Json body{{"prompt", "a"}, {"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 3}};
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    EXPECT_FALSE(parse_json(ask("POST", path, json_text(body)).body, "answer")["choices"][0].contains("token_ids"));
    body["return_token_ids"] = true;
    const Json whole = parse_json(ask("POST", path, json_text(body)).body, "answer")["choices"][0];
    EXPECT_EQ(whole["token_ids"], ids) << path;
    EXPECT_EQ(streamed_ids(path, body), std::pair(ids, 3)) << path;
    body.erase("return_token_ids");
  }
}

}  // namespace
}  // namespace lfm2::serve
