// One request and its answer, shared by the handler's threads and the connection's thread. Internal to src/serve/http;
// handlers use it through a Responder.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/byte_budget.h"
#include "serve/http/limits.h"
#include "serve/http/message.h"
#include "serve/http/responder.h"

namespace lfm2::http {

// The state that a server shares with its connections and exchanges. Exchanges may outlive the server.
struct Shared {
  explicit Shared(const Limits& all)
      : limits(all),
        bodies(std::make_shared<ByteBudget>(all.max_bodies_bytes)),
        unsent(std::make_shared<ByteBudget>(all.max_total_unsent_bytes)) {}

  const Limits limits;
  const std::shared_ptr<ByteBudget> bodies, unsent;
  std::atomic<bool> draining = false;  // further requests are refused
  std::atomic<uint64_t> requests = 0;  // number of requests so far, for their ids
  std::string id_prefix = "request";   // so that ids of two servers differ
};

class Exchange {
 public:
  // The facts about a client that determine the form of its answer.
  struct Client {
    std::string request_id = {};
    bool is_head = false;  // the answer has no body
    bool http_1_0 = false;
    bool keep_alive = false;
    Fields fields = {};  // added to every answer
  };
  // `wake` notifies the connection, on any thread. It must not call the exchange.
  Exchange(std::shared_ptr<const Shared> shared, Client client, std::function<void()> wake);

  // The handler's side, on any thread: see Responder.
  bool answer(const Response& answer);
  bool begin_stream(int status, std::string_view content_type, const Fields& headers);
  bool write(std::string_view text);
  bool end();
  bool behind() const;
  void on_gone(std::function<void(Gone)> callback);
  bool gone() const;
  void note_seed(uint64_t seed);
  void note_replica(int32_t replica);
  void abandon();  // the last Responder is gone: an answer that never began becomes a 500, a stream is cut off

  // The connection's side, on the server's thread.
  struct Progress {
    bool ended = false;       // nothing follows the bytes that pop() returns
    bool broken = false;      // the rest cannot be sent: the connection must close
    bool keep_alive = false;  // the connection may continue after this answer
    bool any_unsent = false;  // including bytes that pop() returned
    int status = 0;           // 0: not known yet
  };
  Progress progress();
  Notes notes() const;
  std::string pop();        // the bytes to be sent next
  void sent(size_t bytes);  // of the bytes that pop() returned
  // Ends an exchange that its handler has not ended, with `answer` if none began. Calls the handler's on_gone callback.
  void take_over(const Response& answer, Gone reason);
  // The connection is closed. Unless the answer is complete, calls the handler's on_gone callback.
  void leave(Gone reason);

 private:
  enum class State : uint8_t { kWaiting, kStreaming, kEnded };

  bool streams_chunks() const { return !client_.http_1_0; }
  bool wanted() const { return !gone_ && !outbox_.broken(); }
  void queue_answer(const Response& answer);
  Fields with_own(const Fields& headers) const;
  void notify();

  const std::shared_ptr<const Shared> shared_;
  const Client client_;

  mutable std::mutex mutex_;
  // Guarded by mutex_. Callbacks are called and destroyed without the lock, because they may own a Responder of this
  // exchange.
  std::function<void()> wake_;
  std::function<void(Gone)> callback_;
  State state_ = State::kWaiting;
  std::optional<Gone> gone_;
  bool keep_alive_ = false;
  bool notified_ = false;  // the connection was notified and has not called progress() since
  int status_ = 0;
  Notes notes_;
  Outbox outbox_;
};

}  // namespace lfm2::http
