// What is read and what is refused, byte by byte and at once.
#include "serve/http/request_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/http_client.h"
#include "support/http_wire.h"

namespace lfm2::test {
namespace {

// What is answered first; the same for the bytes at once and one by one.
std::string first_answer(std::string_view bytes, const Limits& limits = {}) {
  std::string answers[2];
  for (const size_t piece : {std::string_view::npos, size_t{1}}) {
    HttpWire wire(echo(), limits);
    answers[piece == 1] = wire.feed(bytes, piece);
  }
  EXPECT_EQ(status_of(answers[0]), status_of(answers[1]));
  EXPECT_EQ(body_of(answers[0]), body_of(answers[1]));
  return answers[0];
}

TEST(HttpRequestTest, ChunkedBodies) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(body_of(first_answer(head + "3\r\nabc\r\n1f;x=\"y\"\r\n0123456789012345678901234567890\r\n0\r\n\r\n")),
            "POST /  abc0123456789012345678901234567890");
  EXPECT_EQ(body_of(first_answer(head + "0\r\n\r\n")), "POST /  ");
  // Fields behind the body are read and forgotten.
  EXPECT_EQ(body_of(first_answer(head + "1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n")), "POST /  a");
  EXPECT_EQ(body_of(first_answer(head + "1\r\na\r\n0\r\nContent-Length: 9\r\n\r\n")), "POST /  a");
  for (const char* bad : {"x\r\n", "-1\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3 4\r\nabc\r\n", "\r\n",
                          "fffffffffffffffff\r\n", "3;a=\"\r\nabc\r\n\"\r\n0\r\n\r\n", "3\nabc\r\n", "3\r\nabc\n\n",
                          "0\r\nA: b\n\r\n", "0x3\r\n", "+3\r\n", " 3\r\n"}) {
    const std::string out = first_answer(head + bad);
    EXPECT_EQ(status_of(out), "400") << bad;
    EXPECT_TRUE(has(out, "Connection: close")) << bad;
  }
  EXPECT_EQ(status_of(first_answer(head + "1;" + std::string(20'000, 'x'))), "400");
  EXPECT_EQ(status_of(first_answer(head + std::string(20'000, '0'))), "400");
}

TEST(HttpRequestTest, RefusesWhatTwoReadersCouldReadInTwoWays) {
  const std::string get = "GET / HTTP/1.1\r\nHost: a\r\n", post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string bad[] = {
      post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
      post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
      post + "Content-Length: 1, 1\r\n\r\na",
      post + "Content-Length: +1\r\n\r\na",
      post + "Content-Length: \r\n\r\n",
      post + "Content-Length: 0x1\r\n\r\na",
      post + "Content-Length: 9999999999999999999999\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
      post + "Transfer-Encoding : chunked\r\n\r\n",
      get + "Host: b\r\n\r\n",
      get + "Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
      get + "X: a\r\n b\r\n\r\n",
      get + "X: a\n\r\n\r\n",
      get + std::string("X: a\0b\r\n\r\n", 10),
      get + "X: a\rb\r\n\r\n",
      get + ": a\r\n\r\n",
      get + "X\r\n\r\n",
      get + "X y: a\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
      "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /\x80 HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
      "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
      "G\x01T / HTTP/1.1\r\nHost: a\r\n\r\n",
      "\n\n",
      " GET / HTTP/1.1\r\nHost: a\r\n\r\n",
  };
  for (const std::string& bytes : bad) {
    SCOPED_TRACE(bytes);
    const std::string out = first_answer(bytes + http_request("GET", "/smuggled"));
    EXPECT_EQ(status_of(out), "400");
    EXPECT_TRUE(has(out, "\"error\":{\"message\":"));
    EXPECT_TRUE(has(out, "Connection: close"));
    EXPECT_FALSE(has(out, "smuggled"));
  }
  EXPECT_EQ(status_of(first_answer(post + "Transfer-Encoding: gzip, chunked\r\n\r\n")), "501");
  EXPECT_EQ(status_of(first_answer(post + "Expect: more\r\n\r\n")), "417");
  EXPECT_EQ(status_of(first_answer("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n")), "505");
  EXPECT_EQ(status_of(first_answer("GET / HTTP/2.0\r\nHost: a\r\n\r\n")), "505");
  EXPECT_EQ(status_of(first_answer("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")), "505");
}

TEST(HttpRequestTest, TargetsOfProxiesNameTheHost) {
  std::string host, path;
  HttpWire wire({.handle = [&](Request&& request, const Responder& responder) {
    host = *request.headers.find("HOST");
    path = request.path;
    responder.answer({});
  }});
  wire.feed("GET HTTP://one:8/a?b HTTP/1.1\r\nHost: two\r\n\r\n");
  EXPECT_EQ(host, "one:8");
  EXPECT_EQ(path, "/a");
}

TEST(HttpRequestTest, RefusedRequestsHaveRecordsToo) {
  HttpWire wire(echo(), {.max_body_bytes = 10});
  wire.feed(http_request("POST", "/a?b", std::string(11, 'x'), "X-Request-Id: mine\r\n"));
  HttpWire unread(echo());
  unread.feed("no request\r\n\r\n");
  ASSERT_EQ(wire.records.size() + unread.records.size(), 2u);
  EXPECT_EQ(wire.records[0].status, 413);
  EXPECT_EQ(wire.records[0].method + wire.records[0].path + wire.records[0].id, "POST/amine");
  EXPECT_EQ(unread.records[0].status, 400);
  EXPECT_EQ(unread.records[0].path, "");
}

TEST(HttpRequestTest, LimitsOfHeads) {
  const Limits limits{.max_target_bytes = 100, .max_header_bytes = 1000, .max_fields = 10};
  const auto get = [](size_t target, size_t fields, size_t field) {
    std::string text = fmt::format("GET /{} HTTP/1.1\r\nHost: a\r\n", std::string(target - 1, 'x'));
    for (size_t i = 1; i < fields; ++i) text += fmt::format("F{}: {}\r\n", i, std::string(field, 'x'));
    return text + "\r\n";
  };
  EXPECT_EQ(status_of(first_answer(get(100, 10, 10), limits)), "200");
  EXPECT_EQ(status_of(first_answer(get(101, 1, 1), limits)), "414");
  EXPECT_EQ(status_of(first_answer(get(10'000, 1, 1), limits)), "414");
  EXPECT_EQ(status_of(first_answer("GET /" + std::string(200, 'x'), limits)), "414");
  EXPECT_EQ(status_of(first_answer(get(1, 11, 1), limits)), "431");
  EXPECT_EQ(status_of(first_answer(get(1, 10, 200), limits)), "431");
  EXPECT_EQ(status_of(first_answer("GET / HTTP/1.1\r\nHost: " + std::string(2000, 'x'), limits)), "431");
  const std::string whole = get(1, 2, 1000 - get(1, 2, 0).size());
  ASSERT_EQ(whole.size(), 1000u);
  EXPECT_EQ(status_of(first_answer(whole, limits)), "200");
  EXPECT_EQ(status_of(first_answer(get(1, 2, 1001 - get(1, 2, 0).size()), limits)), "431");
}

TEST(HttpRequestTest, LimitsOfBodies) {
  const Limits limits{.max_body_bytes = 1000};
  EXPECT_EQ(status_of(first_answer(http_request("POST", "/", std::string(1000, 'x')), limits)), "200");
  // Refused by what it announces: not a byte of the body is needed.
  const std::string out = first_answer("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", limits);
  EXPECT_EQ(status_of(out), "413");
  EXPECT_TRUE(has(out, "Connection: close"));
  EXPECT_EQ(status_of(first_answer("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
                                   limits)),
            "413");
  const std::string chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(first_answer(chunked + "3e9\r\n", limits)), "413");
  EXPECT_EQ(status_of(first_answer(chunked + "3e8\r\n" + std::string(1000, 'x') + "\r\n1\r\n", limits)), "413");
}

TEST(HttpRequestTest, BodiesOfAllRequestsHaveOneBudget) {
  std::vector<Responder> held;
  std::vector<Request> requests;
  const http::Service keep = {.handle = [&](Request&& request, Responder responder) {
    requests.push_back(std::move(request));
    held.push_back(std::move(responder));
  }};
  HttpWire wire(keep, {.max_body_bytes = 1000, .max_bodies_bytes = 2500});
  wire.feed(http_request("POST", "/", std::string(1000, 'x')), 100);
  ASSERT_EQ(requests.size(), 1u);
  const size_t one = wire.shared().bodies->used();
  EXPECT_GE(one, 1000u);
  EXPECT_LE(one, 2000u);
  ASSERT_TRUE(wire.shared().bodies->reserve(1000));  // as another connection does
  held[0].answer({});
  wire.pump();
  EXPECT_EQ(wire.shared().bodies->used(), one + 1000) << "the request still lives";
  EXPECT_EQ(status_of(wire.feed(http_request("POST", "/", std::string(1000, 'x')))), "503");
  requests.clear();
  EXPECT_EQ(wire.shared().bodies->used(), 1000u);
}

}  // namespace
}  // namespace lfm2::test
