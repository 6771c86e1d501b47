// One connection as a state machine: bytes in, bytes out, and the time. It has no sockets and no threads, so that tests
// and fuzzers drive it as the server does. Its requests are handled one after another.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serve/http/access_log.h"
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
  bool paused() const { return answers() && !hung_up_ && !wants_input(); }
  bool closed() const { return state_ == State::kClosed; }
  bool in_exchange() const { return exchange_ != nullptr; }
  Time deadline() const { return deadline_; }

 private:
  enum class State : uint8_t {
    kIdle,       // between two requests, or before the first one
    kReading,    // a request has begun
    kAnswering,  // a handler works
    kSending,    // it has ended its answer, which is not sent completely
    kLingering,  // discards further input: closing at once could make TCP drop the answer
    kClosed,
  };

  // The bytes that go to the client next.
  class Output {
   public:
    bool empty() const { return sent_ == bytes_.size(); }
    std::string_view unsent() const { return std::string_view(bytes_).substr(sent_); }
    void refill(std::string answer) {  // once it is empty
      bytes_ = std::move(answer);
      sent_ = 0;
    }
    void add_interim(std::string_view text) {  // "100 Continue", which belongs to no answer
      bytes_ += text;
      interim_ += text.size();
    }
    size_t sent(size_t bytes) {  // returns how many of the bytes are of an answer
      const size_t interim = std::min(bytes, interim_);
      sent_ += bytes;
      interim_ -= interim;
      return bytes - interim;
    }

   private:
    std::string bytes_;
    size_t sent_ = 0, interim_ = 0;
  };

  bool answers() const { return state_ == State::kAnswering || state_ == State::kSending; }
  void advance(Time now);
  bool read_some(Time now);  // false: no more can be read now
  void name_request();
  void head_read(Time now);
  void start_handler(Time now);
  void begin_exchange(bool keep_alive, Time now);
  void answer_and_close(const Response& answer, Time now);
  void settle(Time now);
  void finish(bool keep_alive, Time now);

  const std::shared_ptr<Shared> shared_;
  const Service& service_;
  const std::function<void()> wake_;

  State state_ = State::kIdle;
  Time deadline_;
  bool hung_up_ = false;   // the client's side is closed
  bool discards_ = false;  // the connection closes after this answer, so further input is discarded

  std::string input_;  // not used yet
  std::unique_ptr<RequestParser> parser_;
  Output output_;

  std::shared_ptr<Exchange> exchange_;
  OpenRecord record_;
};

}  // namespace lfm2::http
