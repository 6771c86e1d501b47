// One connection as a state machine: bytes in, bytes out, and the time. It has no sockets and no threads, so that tests
// and fuzzers drive it as the server does. Its requests are handled one after another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/exchange.h"
#include "serve/http/request_parser.h"
#include "serve/http/service.h"

namespace lfm2::http {

class Connection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The service must outlive the connection. `wake` may be called on any thread; the server then calls woken().
  Connection(std::shared_ptr<Shared> shared, const Service& service, std::string peer, std::function<void()> wake,
             Time now);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  void received(std::string_view bytes, Time now);
  void hung_up(Time now);   // the client closed its side: it counts as gone unless its answer is complete
  void close(Gone reason);  // at once
  void woken(Time now);     // the exchange has something to send, or the server drains
  void deadline_passed(Time now);

  std::string_view unsent();  // the bytes to send next; empty: none yet
  void sent(size_t bytes, Time now);

  bool wants_input() const;                                     // false while enough input is buffered
  bool lingers() const { return state_ == State::kLingering; }  // all is sent; only reads until the client closes
  // True while input is not read because a request is being answered. Only the socket then knows whether the client is
  // still connected.
  bool paused() const { return state_ == State::kAnswering && !hung_up_ && !wants_input(); }
  bool closed() const { return state_ == State::kClosed; }
  bool in_exchange() const { return exchange_ != nullptr; }
  Time deadline() const { return deadline_; }

 private:
  enum class State : uint8_t {
    kIdle,       // between two requests, or before the first one
    kReading,    // a request has begun
    kAnswering,  // a handler works, or its answer is being sent
    kLingering,  // discards further input: closing at once could make TCP drop the answer
    kClosed,
  };

  void advance(Time now);
  bool read_some(Time now);  // false: no more can be read now
  void name_request();
  void head_read(Time now);
  void start_handler(Time now);
  void begin_exchange(bool keep_alive, Time now);
  void answer_and_close(const Response& answer, Time now);
  void settle(Time now);
  void finish(bool keep_alive, Time now);
  void write_down(bool complete);

  const std::shared_ptr<Shared> shared_;
  const Service& service_;
  const std::function<void()> wake_;

  State state_ = State::kIdle;
  Time deadline_;
  bool hung_up_ = false;   // the client's side is closed
  bool discards_ = false;  // the connection closes after this answer, so further input is discarded

  std::string input_;  // not used yet
  std::unique_ptr<RequestParser> parser_;
  struct {
    std::string bytes;
    size_t sent = 0;
    size_t interim = 0;  // unsent bytes of "100 Continue", which belong to no exchange
  } output_;

  std::shared_ptr<Exchange> exchange_;
  bool answer_ended_ = false;
  AccessRecord record_;  // of the current request; `peer` is that of all requests
  Time begin_;           // of the current request
};

}  // namespace lfm2::http
