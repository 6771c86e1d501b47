// A server's threads over real connections, with a thread in the place of the pipeline that draws what it likes.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/json/json.h"
#include "serve/api.h"
#include "support/call_tokens.h"
#include "support/golden.h"
#include "support/http_client.h"
#include "support/shards.h"
#include "support/weights_support.h"
#include "text/text_model.h"

namespace lfm2::serve {

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
      for (const int32_t sample : source.cancelled()) left.erase(sample);
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
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
  void serve(bool log_requests = false, std::chrono::seconds timeout = std::chrono::seconds(60)) {
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
                         .log_requests = log_requests,
                         .batches = batches_};
    api_.emplace(std::move(settings), live_, *listener_);
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
  test::HttpReply ask(std::string_view method, std::string_view path, std::string_view body = {}) const {
    test::HttpClient client(listener_->address().port);
    client.send(test::http_request(method, path, body));
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
  LiveRequests live_{100};
  Metrics& metrics_ = live_.metrics();
  ReplicaMetrics& replica_metrics_ = metrics_.replicas[0];
  std::optional<LogWriter> log_;
  std::optional<Listener> listener_;
  std::optional<Drawer> drawer_;
  std::optional<Api> api_;
  bool has_text_ = true;
  int64_t max_scored_ = RequestLimits{}.max_scored;
  BatchSettings batches_ = {};
};

// A tokenizer with the tokens of tool calls, and a chat template.
class ApiToolsTest : public ApiTest {
 protected:
  ApiToolsTest() : ApiTest(with_tools()) {}
  static std::filesystem::path with_tools() {
    static const test::TemporaryFolder folder;
    test::write_bytes(folder / "tokenizer.json", test::tokenizer_with_calls());
    test::write_bytes(folder / "chat_template.jinja", "{{ messages[-1]['content'] }}");
    return folder.path();
  }
  // The tokens of the texts, those of calls of tools among them.
  std::vector<int32_t> ids_of(const std::vector<std::string>& texts) const {
    std::vector<int32_t> ids;
    for (const std::string& text : texts) text_.tokenizer().encode(text, false, ids);
    return ids;
  }
};

}  // namespace lfm2::serve
