// The whole way of a client's bytes: parser, rules, router, handlers, answers. Whatever comes, the same bytes must get
// the same answers in pieces of any size, each request one record in the log, and nothing may be held at the end.
#include "fuzz/http_target.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "fuzz/targets.h"
#include "serve/http/access_rules.h"
#include "serve/http/multipart.h"
#include "serve/http/router.h"
#include "support/http_wire.h"

namespace lfm2::fuzz {

namespace {

// No handler's answer has text of the client in it, so that it cannot look like a second answer.
struct Served {
  Served() {
    router.add("GET", "/", [](http::Request&&, const http::Responder& responder) { responder.answer({.body = "a"}); });
    router.add("POST", "/size", [](http::Request&& request, const http::Responder& responder) {
      size_t sum = 0;
      for (const char c : request.body) sum = sum * 31 + static_cast<unsigned char>(c);
      responder.answer({.body = std::to_string(request.body.size()) + " " + std::to_string(sum)});
    });
    router.add("GET", "/stream", [](http::Request&&, const http::Responder& responder) {
      responder.begin_stream(200, "text/plain");
      for (int i = 0; i < 3; ++i) responder.write("piece");
      responder.end();
    });
    router.add("POST", "/later/*", [this](http::Request&&, http::Responder responder) {
      responder.on_gone([this](http::Gone) { ++gone; });
      held.push_back(std::move(responder));
    });
  }

  http::Service service() {
    return {.admit =
                [this](const http::Request& request) {
                  auto answer = rules.refusal(request);
                  return answer ? std::move(answer) : router.refusal(request);
                },
            .handle = [this](http::Request&& request,
                             http::Responder responder) { router.handle(std::move(request), std::move(responder)); }};
  }

  http::Router router;
  http::AccessRules rules{{}};
  std::vector<http::Responder> held;
  size_t gone = 0, answered = 0;
};

void erase_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t begin = 0; (begin = text.find(from, begin)) != std::string::npos;)
    text.erase(begin, text.find(to, begin + from.size()) + to.size() - begin);
}

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++found;
  return found;
}

// Everything that is answered, but for the time of day and 100 Continue, which depend on the moment.
std::string answers(std::string_view bytes, size_t piece, const http::Limits& limits) {
  Served served;
  test::HttpWire wire(served.service(), limits);
  std::string out = wire.feed(bytes, piece);
  // Behind each of these answers, requests that waited can go on.
  for (size_t i = 0; i < served.held.size(); ++i) {
    if (i % 4 == 3) continue;  // its client will be gone
    served.answered += served.held[i].answer({.body = "later"});
    out += wire.pump();
  }
  const size_t kept = wire.connection().in_exchange() ? 1 : 0;
  out += wire.hang_up();
  require(wire.connection().closed(), "a connection that stays behind its client");
  require(served.gone == kept && served.gone + served.answered == served.held.size(), "a client that is gone unheard");
  for (const http::Responder& responder : served.held)
    require(!responder.gone() || kept == 1, "gone behind its answer");
  require(wire.shared().bodies->used() == 0 && wire.shared().unsent->used() == 0, "bytes that nobody holds");
  erase_all(out, "Date: ", "\r\n");
  erase_all(out, "HTTP/1.1 100 Continue\r\n", "\r\n");
  require(count(out, "HTTP/1.1 ") + kept == wire.records.size(), "as many records as answers");
  require(out.empty() || out.starts_with("HTTP/1.1 "), "what is no answer");
  return out;
}

}  // namespace

void http_connection(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // Limits depend on pieces where a request waits behind another one, and in chunks: shorter inputs do not meet them.
  const http::Limits limits{.max_target_bytes = 200, .max_header_bytes = 4096, .max_body_bytes = 1000};
  const std::string whole = answers(text, std::string_view::npos, limits);
  for (const size_t piece : {size_t{1}, size_t{1 + text.size() % 13}}) {
    const std::string parts = answers(text, piece, limits);
    require(text.size() >= limits.max_header_bytes || parts == whole, "answers that depend on the pieces");
  }
}

// A line with the content type, then the body.
void multipart(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view type = text.substr(0, text.find('\n')),
                         body = text.substr(std::min(type.size() + 1, text.size()));
  try {
    for (const http::FormPart& part : http::parse_form(type, body))
      require(part.content.empty() || (part.content.data() >= body.data() &&
                                       part.content.data() + part.content.size() <= body.data() + body.size()),
              "a part that is not in the body");
  } catch (const Error& error) {
    require(error.code() == ExitCode::kData, "another error than for bad data");
  }
}

}  // namespace lfm2::fuzz
