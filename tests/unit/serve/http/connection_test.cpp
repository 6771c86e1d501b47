// The life of a connection: its answers, its deadlines, clients that go, and draining.
#include "serve/http/connection.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/http/event_stream.h"
#include "support/http_client.h"
#include "support/http_wire.h"

namespace lfm2::test {
namespace {

TEST(HttpConnectionTest, AnswersAndStays) {
  HttpWire wire(echo());
  const std::string first = wire.feed(http_request("POST", "/a/b?c=d&e", "body"));
  EXPECT_EQ(status_of(first), "200");
  EXPECT_EQ(body_of(first), "POST /a/b c=d&e body");
  EXPECT_TRUE(has(first, "\r\nContent-Length: 20\r\n"));
  EXPECT_TRUE(has(first, "\r\nContent-Type: text/plain\r\n"));
  EXPECT_TRUE(has(first, "\r\nDate: "));
  EXPECT_FALSE(has(first, "Connection:"));
  EXPECT_FALSE(has(first, "Access-Control"));
  EXPECT_EQ(body_of(wire.feed(http_request("GET", "/2"), 3)), "GET /2  ");
  EXPECT_EQ(wire.records.size(), 2u);
  EXPECT_EQ(wire.records[0].method, "POST");
  EXPECT_EQ(wire.records[0].path, "/a/b");
  EXPECT_EQ(wire.records[0].bytes, first.size());
  EXPECT_TRUE(wire.records[0].complete);
  EXPECT_EQ(wire.shared().bodies->used(), 0u);
  EXPECT_EQ(wire.shared().unsent->used(), 0u);
}

TEST(HttpConnectionTest, PipelinedRequestsAreAnsweredInOrder) {
  const std::string all = http_request("GET", "/1") + http_request("POST", "/2", "two") + "\r\n" +
                          http_request("GET", "/3", "", "Connection: close\r\n") + http_request("GET", "/4");
  for (const size_t piece : {std::string::npos, size_t{1}, size_t{7}}) {
    HttpWire wire(echo());
    const std::string out = wire.feed(all, piece);
    EXPECT_TRUE(has(out, "GET /1  HTTP/1.1 200 OK"));
    EXPECT_TRUE(has(out, "POST /2  twoHTTP/1.1 200 OK"));
    EXPECT_TRUE(has(out, "\r\nConnection: close\r\n\r\nGET /3  "));
    EXPECT_FALSE(has(out, "/4"));
    EXPECT_TRUE(wire.connection().lingers());
  }
}

TEST(HttpConnectionTest, ContinuesWhereTheClientWaits) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
  HttpWire wire(echo());
  EXPECT_EQ(wire.feed(head), "HTTP/1.1 100 Continue\r\n\r\n");
  const std::string out = wire.feed("abc");
  EXPECT_EQ(body_of(out), "POST /  abc");
  EXPECT_EQ(wire.records[0].bytes, out.size());
  EXPECT_EQ(status_of(wire.feed(head + "abc")), "200") << "the body came unasked";
}

TEST(HttpConnectionTest, AdmittedByTheHeadAlone) {
  http::Service service = echo();
  service.admit = [](const Request& request) -> std::optional<Response> {
    EXPECT_TRUE(request.body.empty());
    if (request.path == "/no") return http::error_response(401, "No.");
    return {};
  };
  HttpWire wire(service);
  EXPECT_EQ(status_of(wire.feed(http_request("GET", "/no"))), "401");
  EXPECT_EQ(status_of(wire.feed(http_request("GET", "/"))), "200") << "without a body the connection stays";
  EXPECT_EQ(status_of(wire.feed("POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")), "401");
  EXPECT_TRUE(wire.connection().lingers());
}

TEST(HttpConnectionTest, OldClients) {
  HttpWire wire(echo());
  EXPECT_TRUE(has(wire.feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), "\r\nConnection: keep-alive\r\n"));
  EXPECT_TRUE(has(wire.feed("GET / HTTP/1.0\r\n\r\n"), "\r\nConnection: close\r\n"));
  EXPECT_TRUE(wire.connection().lingers());

  HttpWire stream({.handle = [](Request&&, const Responder& responder) {
    responder.begin_stream(200, "text/plain");
    responder.write("abc");
    responder.end();
  }});
  const std::string out = stream.feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(body_of(out), "abc") << "without chunks, to the end of the connection";
  EXPECT_TRUE(has(out, "Connection: close"));
}

TEST(HttpConnectionTest, HeadsHaveNoBodies) {
  HttpWire wire({.handle = [](Request&& request, const Responder& responder) {
    if (request.path == "/none") {
      responder.answer({.status = 204});
    } else if (request.path == "/stream") {
      responder.begin_stream(200, "text/plain");
      responder.write("abc");
      responder.end();
    } else {
      responder.answer({.body = "abc"});
    }
  }});
  const std::string head = wire.feed(http_request("HEAD", "/"));
  EXPECT_TRUE(has(head, "Content-Length: 3"));
  EXPECT_EQ(body_of(head), "");
  const std::string stream = wire.feed(http_request("HEAD", "/stream"));
  EXPECT_TRUE(has(stream, "Transfer-Encoding: chunked"));
  EXPECT_EQ(body_of(stream), "");
  EXPECT_FALSE(has(wire.feed(http_request("GET", "/none")), "Content-Length"));
  EXPECT_EQ(body_of(wire.feed(http_request("GET", "/stream"))), "3\r\nabc\r\n0\r\n\r\n");
}

TEST(HttpConnectionTest, RequestIds) {
  std::string id;
  HttpWire wire({.handle = [&](Request&& request, const Responder& responder) {
    id = request.id;
    responder.answer({});
  }});
  EXPECT_TRUE(has(wire.feed(http_request("GET", "/", "", "x-request-id: mine-1\r\n")), "X-Request-Id: mine-1\r\n"));
  EXPECT_EQ(id, "mine-1");
  for (const std::string& bad : {std::string("a b"), std::string(65, 'x'), std::string("caf\xe9")}) {
    const std::string out = wire.feed(http_request("GET", "/", "", fmt::format("X-Request-Id: {}\r\n", bad)));
    EXPECT_TRUE(id.starts_with("request-")) << id;
    EXPECT_TRUE(has(out, fmt::format("X-Request-Id: {}\r\n", id)));
  }
  EXPECT_EQ(wire.records.back().id, id);
}

TEST(HttpConnectionTest, ARequestMustArriveInTime) {
  const Limits limits{.read_time = seconds(10), .idle_time = seconds(20), .linger_time = seconds(1)};
  HttpWire silent(echo(), limits);
  EXPECT_EQ(silent.pass(seconds(9)), "");
  EXPECT_FALSE(silent.connection().closed());
  EXPECT_EQ(silent.pass(seconds(1)), "");
  EXPECT_TRUE(silent.connection().closed());

  HttpWire slow(echo(), limits);  // a byte a second: each comes in time, all of them do not
  std::string out;
  for (const char byte : http_request("POST", "/", "a body")) {
    out += slow.feed({&byte, 1});
    out += slow.pass(seconds(1));
  }
  EXPECT_EQ(status_of(out), "408");
  EXPECT_TRUE(slow.connection().closed());

  HttpWire body(echo(), limits);
  EXPECT_EQ(body.feed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"), "");
  EXPECT_EQ(status_of(body.pass(seconds(10))), "408");

  HttpWire idle(echo(), limits);
  idle.feed(http_request("GET", "/"));
  idle.feed("\r\n");  // is no request yet
  EXPECT_EQ(idle.pass(seconds(19)), "");
  EXPECT_FALSE(idle.connection().closed());
  EXPECT_EQ(idle.pass(seconds(1)), "");
  EXPECT_TRUE(idle.connection().closed());
}

TEST(HttpConnectionTest, AnAnswerMustEndInTime) {
  std::vector<Responder> held;
  std::vector<Gone> gone;
  const http::Service hold = {.handle = [&](Request&& request, Responder responder) {
    if (request.path == "/stream") responder.begin_stream(200, "text/plain");
    responder.on_gone([&](Gone reason) { gone.push_back(reason); });
    held.push_back(std::move(responder));
  }};
  const Limits limits{.answer_time = seconds(100)};
  HttpWire late(hold, limits);
  EXPECT_EQ(late.feed(http_request("GET", "/")), "");
  EXPECT_EQ(late.pass(seconds(99)), "");
  EXPECT_EQ(status_of(late.pass(seconds(1))), "504");
  EXPECT_EQ(gone, std::vector{Gone::kTime});
  EXPECT_FALSE(held[0].answer({}));

  HttpWire stream(hold, limits);
  EXPECT_EQ(status_of(stream.feed(http_request("GET", "/stream"))), "200");
  EXPECT_EQ(stream.pass(seconds(100)), "");
  EXPECT_TRUE(stream.connection().closed());
  EXPECT_EQ(gone, (std::vector{Gone::kTime, Gone::kTime}));
  EXPECT_FALSE(held[1].write("x"));
  EXPECT_FALSE(stream.records[0].complete);
}

TEST(HttpConnectionTest, SlowReadersAreLeft) {
  std::vector<Responder> held;
  std::vector<Gone> gone;
  HttpWire wire({.handle =
                     [&](Request&&, Responder responder) {
                       responder.begin_stream(200, "text/plain");
                       responder.on_gone([&](Gone reason) { gone.push_back(reason); });
                       held.push_back(std::move(responder));
                     }},
                {.max_unsent_bytes = 10'000});
  wire.connection().received(http_request("GET", "/"), std::chrono::steady_clock::now());
  wire.pump(100);  // and no more
  int written = 0;
  while (written < 1000 && held[0].write(std::string(100, 'x'))) ++written;
  EXPECT_GT(written, 80);
  EXPECT_LT(written, 100);
  wire.pump(100);
  EXPECT_TRUE(wire.connection().closed());
  EXPECT_EQ(gone, std::vector{Gone::kSlow});
  EXPECT_EQ(wire.shared().unsent->used(), 0u);
  EXPECT_TRUE(held[0].gone());
}

TEST(HttpConnectionTest, APieceMayBeLargeWhereNothingPilesUp) {
  std::vector<Responder> held;
  HttpWire wire({.handle =
                     [&](Request&&, Responder responder) {
                       responder.begin_stream(200, "text/plain");
                       held.push_back(std::move(responder));
                     }},
                {.max_unsent_bytes = 10'000, .behind_bytes = 1000, .max_answer_bytes = 100'000});
  wire.connection().received(http_request("GET", "/"), std::chrono::steady_clock::now());
  EXPECT_TRUE(held[0].write(std::string(90'000, 'x')));
  EXPECT_FALSE(held[0].write("y"));
  EXPECT_TRUE(held[0].gone());
}

TEST(HttpConnectionTest, HandlersLearnThatAReaderIsBehind) {
  std::vector<Responder> held;
  HttpWire wire({.handle =
                     [&](Request&&, Responder responder) {
                       responder.begin_stream(200, "text/plain");
                       held.push_back(std::move(responder));
                     }},
                {.behind_bytes = 1000});
  wire.connection().received(http_request("GET", "/"), std::chrono::steady_clock::now());
  EXPECT_FALSE(held[0].behind());
  EXPECT_TRUE(held[0].write(std::string(1000, 'x')));
  EXPECT_TRUE(held[0].behind());
  wire.pump(100);
  EXPECT_TRUE(held[0].behind());
  wire.pump(10'000);
  EXPECT_FALSE(held[0].behind());
}

TEST(HttpConnectionTest, AnAnswerMustBeReadInTime) {
  HttpWire wire(
      {.handle = [](Request&&, const Responder& responder) { responder.answer({.body = std::string(9999, 'x')}); }},
      {.send_time = seconds(30)});
  wire.connection().received(http_request("GET", "/"), std::chrono::steady_clock::now());
  EXPECT_EQ(wire.pump(500).size(), 500u);
  EXPECT_FALSE(wire.connection().closed());
  wire.connection().deadline_passed(wire.connection().deadline());
  EXPECT_TRUE(wire.connection().closed());
  EXPECT_EQ(wire.records[0].bytes, 500u);
  EXPECT_FALSE(wire.records[0].complete);
}

TEST(HttpConnectionTest, TooLargeAnswersAreErrors) {
  HttpWire wire(
      {.handle = [](Request&&, const Responder& responder) { responder.answer({.body = std::string(101, 'x')}); }},
      {.max_answer_bytes = 100});
  EXPECT_EQ(status_of(wire.feed(http_request("GET", "/"))), "500");
}

TEST(HttpConnectionTest, HandlersHearOnceThatTheClientIsGone) {
  for (const bool streams : {false, true}) {
    std::vector<Responder> held;
    std::vector<Gone> gone;
    HttpWire wire({.handle = [&](Request&&, Responder responder) {
      if (streams) responder.begin_stream(200, "text/plain");
      responder.on_gone([&, own = responder](Gone reason) { gone.push_back(reason); });  // owns itself: no leak
      held.push_back(std::move(responder));
    }});
    wire.feed(http_request("GET", "/"));
    EXPECT_FALSE(held[0].gone());
    wire.hang_up();
    EXPECT_TRUE(wire.connection().closed());
    EXPECT_TRUE(held[0].gone());
    wire.cut();
    EXPECT_EQ(gone, std::vector{Gone::kLeft});
    held[0].on_gone([&](Gone reason) { gone.push_back(reason); });
    EXPECT_EQ(gone.size(), 2u) << "called at once";
  }
}

TEST(HttpConnectionTest, BehindTheAnswerNobodyIsGone) {
  int gone = 0;
  HttpWire wire({.handle = [&](Request&&, const Responder& responder) {
    responder.on_gone([&](Gone) { ++gone; });
    responder.answer({.body = std::string(1000, 'x')});
    responder.on_gone([&](Gone) { ++gone; });
  }});
  wire.connection().received(http_request("GET", "/"), std::chrono::steady_clock::now());
  wire.pump(10);
  wire.connection().hung_up(std::chrono::steady_clock::now());
  EXPECT_FALSE(wire.connection().closed()) << "the client may still read";
  EXPECT_TRUE(wire.pump().ends_with("xxx"));
  EXPECT_TRUE(wire.connection().closed());
  EXPECT_EQ(gone, 0);
}

TEST(HttpConnectionTest, HandlersThatFail) {
  std::string said;
  HttpWire wire({.handle =
                     [&](Request&& request, const Responder& responder) {
                       if (request.path == "/throws") throw std::runtime_error("broken");
                       if (request.path == "/twice") {
                         responder.answer({});
                         responder.answer({});
                       }
                       if (request.path == "/field") responder.answer({.headers = {{"X", "a\r\nSet-Cookie: b"}}});
                       if (request.path == "/breaks") responder.begin_stream(200, "text/plain");
                     },
                 .report = [&](const std::string& line) { said = line; }});
  EXPECT_EQ(status_of(wire.feed(http_request("GET", "/forgets"))), "500");
  EXPECT_EQ(status_of(wire.feed(http_request("GET", "/throws"))), "500");
  EXPECT_TRUE(has(said, "broken"));
  EXPECT_EQ(status_of(wire.feed(http_request("GET", "/twice"))), "200");
  EXPECT_TRUE(has(said, "answered twice"));
  const std::string field = wire.feed(http_request("GET", "/field"));
  EXPECT_EQ(status_of(field), "500");
  EXPECT_FALSE(has(field, "Set-Cookie"));
  EXPECT_FALSE(has(wire.feed(http_request("GET", "/breaks")), "0\r\n\r\n"));
  EXPECT_TRUE(wire.connection().closed());
}

TEST(HttpConnectionTest, InputWaitsBehindARunningRequest) {
  std::vector<Responder> held;
  HttpWire wire({.handle = [&](Request&&, Responder responder) { held.push_back(std::move(responder)); }},
                {.max_header_bytes = 1000});
  const std::string get = http_request("GET", "/");
  std::string many;
  while (many.size() < 10 * 1000) many += get;
  wire.feed(many, get.size());
  EXPECT_FALSE(wire.connection().wants_input());
  EXPECT_TRUE(wire.connection().paused());
  ASSERT_EQ(held.size(), 1u);
  for (size_t i = 0; i < held.size(); ++i) {
    held[i].answer({});
    EXPECT_EQ(status_of(wire.pump()), "200");
  }
  EXPECT_NEAR(static_cast<double>(held.size()), 1000.0 / static_cast<double>(get.size()) + 1, 2);
  EXPECT_TRUE(wire.connection().wants_input());
}

TEST(HttpConnectionTest, Draining) {
  HttpWire idle(echo());
  idle.feed(http_request("GET", "/"));
  idle.drain();
  EXPECT_TRUE(idle.connection().closed());

  std::vector<Responder> held;
  HttpWire running({.handle = [&](Request&&, Responder responder) { held.push_back(std::move(responder)); }});
  running.feed(http_request("GET", "/") + http_request("GET", "/2"));
  running.drain();
  EXPECT_FALSE(running.connection().closed());
  held[0].answer({});
  EXPECT_TRUE(has(running.pump(), "Connection: close"));
  EXPECT_TRUE(running.connection().lingers());
  EXPECT_EQ(held.size(), 1u);

  HttpWire half(echo());
  half.feed("GET / HTTP/1.1\r\n");
  half.drain();
  EXPECT_EQ(status_of(half.feed("Host: a\r\n\r\n")), "503");
}

TEST(HttpConnectionTest, AccessLinesAreJson) {
  http::AccessRecord record{.time = std::chrono::system_clock::time_point(milliseconds(1'700'000'000'123)),
                            .id = "a\"b",
                            .peer = "127.0.0.1:5",
                            .method = "GET",
                            .path = "/x",
                            .status = 200,
                            .bytes = 12,
                            .seconds = 0.25,
                            .complete = true};
  EXPECT_EQ(http::access_line(record),
            R"({"time":"2023-11-14T22:13:20.123Z","id":"a\"b","peer":"127.0.0.1:5","method":"GET","path":"/x",)"
            R"("status":200,"bytes":12,"seconds":0.25,"complete":true})");
  record.notes = {.seed = 7, .replicas = {2}};
  EXPECT_TRUE(http::access_line(record).ends_with(R"("complete":true,"seed":7,"replica":2})"));
  record.notes = {.replicas = {2, 0}};
  EXPECT_TRUE(http::access_line(record).ends_with(R"("complete":true,"replica":[0,2]})"));
}

TEST(HttpEventTest, EachLineOfTheDataHasItsOwn) {
  EXPECT_EQ(http::event_text("{}"), "data: {}\n\n");
  EXPECT_EQ(http::event_text("{}", "one"), "event: one\ndata: {}\n\n");
  EXPECT_EQ(http::event_text("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
}

}  // namespace
}  // namespace lfm2::test
