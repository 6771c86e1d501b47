// A small server for clients of other makes: prints its port and serves until its input ends.
//   http_server [KEY]
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "serve/http/access_rules.h"
#include "serve/http/event_stream.h"
#include "serve/http/router.h"
#include "serve/http/server.h"

namespace {

using namespace lfm2;

int serve(const std::vector<std::string>& keys) {
  const http::AccessRules rules({.api_keys = keys, .open_paths = {"/health"}});
  http::Router router;
  std::mutex mutex;
  std::vector<std::jthread> threads;
  std::atomic<int> gone = 0;
  router.add("GET", "/health", [&](http::Request&&, const http::Responder& responder) {
    responder.answer({.content_type = "application/json", .body = fmt::format(R"({{"gone":{}}})", gone.load())});
  });
  router.add("POST", "/echo", [](http::Request&& request, const http::Responder& responder) {
    responder.answer({.content_type = "application/octet-stream", .body = std::move(request.body)});
  });
  router.add("GET", "/events", [&](http::Request&&, http::Responder responder) {
    responder.on_gone([&](http::Gone) { ++gone; });
    responder.begin_stream(200, http::kEventStream, {{"Cache-Control", "no-store"}});
    const std::lock_guard lock(mutex);
    threads.emplace_back([responder = std::move(responder)] {
      for (int i = 0; i < 20 && responder.write(http::event_text(fmt::format("{}", i))); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      responder.write(http::event_text("[DONE]"));
      responder.end();
    });
  });
  http::Limits limits;
  limits.max_body_bytes = 4 << 20;
  http::Server server(
      limits, {.admit =
                   [&](const http::Request& request) {
                     auto answer = rules.refusal(request);
                     return answer ? std::move(answer) : router.refusal(request);
                   },
               .handle = [&](http::Request&& request,
                             http::Responder responder) { router.handle(std::move(request), std::move(responder)); },
               .log = [](const http::AccessRecord& record) { fmt::print(stderr, "{}\n", http::access_line(record)); }});
  fmt::print("{}\n", server.listen("127.0.0.1", 0).port);
  std::fflush(stdout);
  server.start();
  while (std::getchar() != EOF) continue;
  server.stop_accepting();
  const bool closed = server.wait_until_closed(std::chrono::seconds(10));
  server.stop();
  return closed ? 0 : 1;
}

}  // namespace

int main(int arguments, char** texts) {
  try {
    return serve(std::vector<std::string>(texts + 1, texts + arguments));
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
