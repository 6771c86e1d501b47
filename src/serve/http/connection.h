// One connection as a state machine: bytes in, bytes out, and the time. It knows no sockets and no threads of its own,
// so that tests and fuzzers drive it as the server does. Requests on it are handled one after the other.
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

  // The service must outlive the connection. `wake` is called on any thread when woken() is to be called.
  Connection(std::shared_ptr<Shared> shared, const Service& service, std::string peer, std::function<void()> wake,
             Time now);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  void received(std::string_view bytes, Time now);
  void hung_up(Time now);   // the client sends nothing more: it counts as gone unless its answer is complete
  void close(Gone reason);  // at once
  void woken(Time now);     // the exchange has news, or the server drains
  void deadline_passed(Time now);

  std::string_view unsent();  // what is to be sent next; empty: nothing yet
  void sent(size_t bytes, Time now);

  bool wants_input() const;  // false while enough waits for the request that is being answered
  bool lingers() const { return state_ == State::kLingering; }  // everything was sent and nothing more will be
  // Input waits for the request that is being answered: only the socket knows whether the client is still there.
  bool paused() const { return state_ == State::kAnswering && !hung_up_ && !wants_input(); }
  bool closed() const { return state_ == State::kClosed; }
  bool in_exchange() const { return exchange_ != nullptr; }
  Time deadline() const { return deadline_; }

 private:
  enum class State : uint8_t {
    kIdle,       // between two requests, or before the first one
    kReading,    // a request has begun
    kAnswering,  // the exchange runs, or its answer is being sent
    kLingering,  // reads what still comes: closing at once could destroy the answer on its way
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
  bool discards_ = false;  // the connection closes after this answer: further input is useless

  std::string input_;  // not used yet
  std::unique_ptr<RequestParser> parser_;
  struct {
    std::string bytes;
    size_t sent = 0;
    size_t interim = 0;  // of the bytes that are not sent: those that belong to no exchange
  } output_;

  std::shared_ptr<Exchange> exchange_;
  bool answer_ended_ = false;
  AccessRecord record_;  // of the current request; its peer is that of all
  Time begin_;           // of the current request
};

}  // namespace lfm2::http
