// A server over real sockets with a few handlers, for tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/router.h"
#include "serve/http/server.h"
#include "support/http_names.h"

namespace lfm2::test {

inline constexpr std::chrono::milliseconds kPatience{30'000};

// Whether it becomes true within the patience.
template <class F>
bool soon(F&& true_now, std::chrono::milliseconds patience = kPatience) {
  for (const auto end = Clock::now() + patience; Clock::now() < end;
       std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    if (true_now()) return true;
  return true_now();
}

// A server with a few handlers: / says hello, /echo the body, /hold keeps the request for the test, /stream writes
// without end from a thread of its own.
class HttpServerTest : public ::testing::Test {
 protected:
  uint16_t start(http::Limits limits = {}) {
    router_.add("GET", "/",
                [](http::Request&&, const http::Responder& responder) { responder.answer({.body = "hello"}); });
    router_.add("POST", "/echo", [](http::Request&& request, const http::Responder& responder) {
      responder.answer({.body = std::move(request.body)});
    });
    router_.add("GET", "/hold", [this](http::Request&& request, http::Responder responder) {
      const std::lock_guard lock(mutex_);
      const size_t index = gone_.size();
      gone_.emplace_back();
      responder.on_gone([this, index](http::Gone reason) {
        const std::lock_guard again(mutex_);
        gone_[index].push_back(reason);
      });
      if (request.query == "stream") responder.begin_stream(200, "text/plain");
      held_.push_back(std::move(responder));
    });
    router_.add("GET", "/stream", [this](http::Request&&, http::Responder responder) {
      responder.begin_stream(200, "text/plain");
      const std::lock_guard lock(mutex_);
      threads_.emplace_back([this, responder = std::move(responder)] {
        const std::string text(1000, 'x');
        while (responder.write(text)) {
          written_ += text.size();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
    });
    server_.emplace(limits,
                    http::Service{.admit = [this](const http::Request& request) { return router_.refusal(request); },
                                  .handle =
                                      [this](http::Request&& request, http::Responder responder) {
                                        router_.handle(std::move(request), std::move(responder));
                                      },
                                  .log =
                                      [this](const http::AccessRecord& record) {
                                        const std::lock_guard lock(mutex_);
                                        records_.push_back(record);
                                      }});
    const uint16_t port = server_->listen("127.0.0.1", 0).port;
    server_->start();
    return port;
  }
  void TearDown() override {
    if (!server_) return;
    server_->stop();
    EXPECT_EQ(server_->counts().connections, 0u);
    EXPECT_EQ(server_->counts().exchanges, 0u);
    EXPECT_EQ(server_->counts().body_bytes, 0u);
    EXPECT_EQ(server_->counts().unsent_bytes, 0u);
    for (std::thread& thread : threads_) thread.join();
  }
  size_t held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  // How often each held request was told that its client is gone.
  std::vector<std::vector<http::Gone>> gone() {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  size_t all_gone() {
    size_t sum = 0;
    for (const auto& one : gone()) sum += one.size();
    return sum;
  }

  http::Router router_;
  std::mutex mutex_;
  std::vector<http::Responder> held_;  // guarded by mutex_, as are the next three
  std::vector<std::vector<http::Gone>> gone_;
  std::vector<http::AccessRecord> records_;
  std::vector<std::thread> threads_;
  std::atomic<size_t> written_ = 0;
  std::optional<http::Server> server_;
};

}  // namespace lfm2::test
