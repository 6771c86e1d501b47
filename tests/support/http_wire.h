// A connection of the HTTP server without a socket: bytes go in in pieces of any size, time is what the test says.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/connection.h"
#include "support/http_names.h"

namespace lfm2::test {

// Answers with the method, the path, the query and the body.
inline http::Service echo() {
  return {.handle = [](http::Request&& request, const http::Responder& responder) {
    responder.answer({.content_type = "text/plain",
                      .body = fmt::format("{} {} {} {}", request.method, request.path, request.query, request.body)});
  }};
}

inline std::string status_of(std::string_view output) {
  return output.starts_with("HTTP/1.1 ") ? std::string(output.substr(9, 3)) : "none";
}

inline std::string body_of(const std::string& output) {
  const size_t end = output.find("\r\n\r\n");
  return end == std::string::npos ? "none" : output.substr(end + 4);
}

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class HttpWire {
 public:
  explicit HttpWire(http::Service service, const http::Limits& limits = {})
      : service_(std::move(service)), shared_(std::make_shared<http::Shared>(limits)) {
    service_.log = [this](const http::AccessRecord& record) { records.push_back(record); };
    connection_ = std::make_unique<http::Connection>(
        shared_, service_, "127.0.0.1:1", [this] { woken_ = true; }, now_);
  }

  // What the server sends while these bytes come in pieces of this size, to a client that reads at once.
  std::string feed(std::string_view bytes, size_t piece = std::string_view::npos) {
    std::string out = pump();
    while (!bytes.empty() && connection_->wants_input()) {
      const std::string_view part = bytes.substr(0, piece);
      connection_->received(part, now_);
      bytes.remove_prefix(part.size());
      out += pump();
    }
    return out;
  }
  // What it sends when this time has passed.
  std::string pass(std::chrono::milliseconds time) {
    const auto end = now_ + time;
    std::string out = pump();
    while (!connection_->closed() && connection_->deadline() <= end) {
      now_ = std::max(now_, connection_->deadline());
      connection_->deadline_passed(now_);
      out += pump();
    }
    now_ = end;
    return out;
  }
  std::string hang_up() {
    connection_->hung_up(now_);
    return pump();
  }
  void drain() {
    shared_->draining = true;
    connection_->woken(now_);
  }
  // The client's end goes away without a word.
  void cut() { connection_.reset(); }

  // Sends what is there, all of it or as many bytes as the socket would take.
  std::string pump(size_t most = std::string::npos) {
    std::string out;
    while (true) {
      if (woken_.exchange(false)) connection_->woken(now_);
      const std::string_view bytes = connection_->unsent().substr(0, most - out.size());
      if (bytes.empty()) return out;
      out += bytes;
      connection_->sent(bytes.size(), now_);
    }
  }

  http::Connection& connection() { return *connection_; }
  http::Shared& shared() { return *shared_; }
  std::vector<http::AccessRecord> records;

 private:
  http::Service service_;
  std::shared_ptr<http::Shared> shared_;
  std::atomic<bool> woken_ = false;
  http::Connection::Time now_ = std::chrono::steady_clock::now();
  std::unique_ptr<http::Connection> connection_;
};

}  // namespace lfm2::test
