// OpenAI's interface over a generation: routes, the requests that are being answered, and the threads that read bodies
// and write answers. The generation itself runs on the thread of the job and never waits for a client.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "serve/answering.h"
#include "serve/embeddings_answering.h"
#include "serve/http/access_rules.h"
#include "serve/http/router.h"
#include "serve/http/server.h"
#include "serve/live_requests.h"

namespace lfm2::serve {

struct ApiSettings {
  std::string host;
  uint16_t port = 0;
  std::string model_name;
  std::string version;
  std::vector<std::string> api_keys;
  size_t max_body_bytes = 0;
  int64_t max_queue = 0;  // requests that wait, for their reading or for their turn
  std::chrono::seconds request_timeout{0};
  RequestDefaults defaults;
  RequestLimits limits;
  LineContext lines;                  // `text` is set and outlives the Api
  Hidden embeddings = Hidden::kMean;  // what embeddings are made of
  std::function<void(const std::string& line)> access_log = {};
};

class Api {
 public:
  // Answers from here on. `live` and `metrics` must outlive this. Error(kUnavailable) where the address cannot be had.
  Api(ApiSettings settings, LiveRequests& live, Metrics& metrics);
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;
  // Writes what was drawn, ends all other answers with an error, and closes all connections.
  ~Api();

  const http::Address& address() const { return address_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind : uint8_t { kCompletion, kChat, kEmbeddings, kTokenize, kDetokenize };
  struct Unread {
    Kind kind;
    http::Request request;
    http::Responder responder;
  };

  void add_routes();
  http::Answer models() const;
  http::Answer health() const;
  http::Answer tokenizer_info() const;
  void queue(Kind kind, http::Request&& request, http::Responder responder);
  void read_bodies();
  void read(const Unread& unread);
  void begin(const Unread& unread);
  void begin_embeddings(const Unread& unread);
  void begin(const Unread& unread, std::shared_ptr<OpenAnswer> answer, std::vector<Request> requests);
  http::Answer tokenize(std::string_view body) const;
  http::Answer detokenize(std::string_view body) const;
  void write_answers();
  void hand_out(const std::vector<Drawn>& tokens);
  void drop_gone();
  void end_late();
  void forget(int32_t first_sample);
  void take_back(const OpenAnswer& answer);
  std::shared_ptr<OpenAnswer> find(int32_t sample);

  const ApiSettings settings_;
  LiveRequests& live_;
  Metrics& metrics_;
  const ToolTokens tool_tokens_;
  const int64_t started_;  // seconds since 1970
  http::AccessRules access_;
  http::Router router_;

  std::mutex mutex_;
  std::condition_variable any_unread_;
  struct {
    std::deque<Unread> unread;
    std::map<int32_t, std::shared_ptr<OpenAnswer>> answering;  // by the first sample
    std::vector<int32_t> gone;                                 // first samples
    bool ends = false;
  } open_;  // guarded by mutex_

  std::unique_ptr<http::Server> server_;
  http::Address address_;
  std::thread reader_, writer_;
};

}  // namespace lfm2::serve
