// OpenAI's interface over a generation: the routes, the open requests, and the threads that read bodies and write
// answers. The generation itself runs on the job's thread and never waits for a client.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "openai/model_info.h"
#include "openai/openai_request.h"
#include "serve/batches.h"
#include "serve/http/router.h"
#include "serve/listener.h"
#include "serve/live_requests.h"
#include "serve/pending_response.h"

namespace lfm2::serve {

struct ApiSettings {
  std::string model_name;
  std::string version;
  int64_t max_queue = 0;  // requests that wait to be read or to be scheduled
  std::chrono::seconds request_timeout{0};
  RequestDefaults defaults = {};
  RequestLimits limits;
  LineContext lines;                  // `text` outlives the Api
  Hidden embeddings = Hidden::kMean;  // what embeddings are made of
  bool fresh_seeds = false;           // each request without a seed gets a random one
  bool log_requests = false;          // the log includes request bodies with their texts
  BatchSettings batches = {};
};

class Api {
 public:
  // Answers the listener's requests from now on. `live` and `listener` must outlive this.
  Api(ApiSettings settings, LiveRequests& live, Listener& listener);
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;
  // Writes the tokens drawn so far, ends all unfinished answers with an error, and closes the listener.
  ~Api();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind : uint8_t { kCompletion, kChat, kResponses, kEmbeddings, kTokenize, kDetokenize };
  struct Unread {
    Kind kind;
    http::Request request;
    http::Responder responder;
  };

  void add_routes();
  http::Response figures() const;
  void queue(Kind kind, http::Request&& request, http::Responder responder);
  void refuse_unread();
  void read_bodies(std::deque<Unread>& unread);
  void read(const Unread& unread);
  void log_body(const http::Request& request) const;
  void begin(const Unread& unread);
  void begin_embeddings(const Unread& unread);
  void submit(const Unread& unread, int32_t first, std::unique_ptr<ResponseBuilder> builder,
              std::vector<Request> requests);
  static int status_of(const std::exception& error);  // Error(kData) is the client's fault
  static std::string words_of(const std::exception& error);
  void write_answers();
  void write_large_answers();
  void hand_out(const std::vector<Drawn>& tokens);
  void finish(PendingResponse& response);
  void drop_gone();
  void end_late();
  void forget(int32_t first_sample);
  void break_off(PendingResponse& response, int status, std::string_view why);
  std::shared_ptr<PendingResponse> find(int32_t sample);

  const ApiSettings settings_;
  LiveRequests& live_;
  Metrics& metrics_;
  Listener& listener_;
  const AnswerTokens answer_tokens_;
  const ModelInfo model_;
  http::Router router_;

  std::mutex mutex_;
  std::condition_variable any_unread_, any_large_;
  struct {
    std::deque<Unread> unread, unread_large;
    std::map<int32_t, std::shared_ptr<PendingResponse>> responses;  // by the first sample
    std::vector<int32_t> gone;                                      // first samples
    std::deque<std::shared_ptr<PendingResponse>> large;             // complete, waiting to be written
    std::atomic<bool> reading_ends = false;                         // ends also the reading of bodies that has begun
    bool writing_ends = false, large_end = false;
  } open_;  // guarded by mutex_

  struct {
    std::unique_ptr<Batches> batches;
    std::thread reader, reader_of_large, writer, writer_of_large;
  } workers_;
};

}  // namespace lfm2::serve
