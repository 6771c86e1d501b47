// The server over real sockets: connections, addresses, draining and stopping.
#include "serve/http/server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"
#include "support/http_client.h"
#include "support/http_server_test.h"

namespace lfm2::test {
namespace {

TEST_F(HttpServerTest, AnswersOnOneConnection) {
  HttpClient client(start());
  for (int i = 0; i < 3; ++i) {
    client.send(http_request("GET", "/"));
    EXPECT_EQ(client.reply().body, "hello");
  }
  const std::string body(3'000'000, 'b');
  client.send(http_request("POST", "/echo", body));
  EXPECT_EQ(client.reply().body, body);
  client.send(http_request("HEAD", "/"));
  EXPECT_EQ(client.reply(true).headers["content-length"], "5");
  client.send(http_request("OPTIONS", "/echo"));
  EXPECT_EQ(client.reply().headers["allow"], "OPTIONS, POST");
  client.send(http_request("DELETE", "/echo"));
  EXPECT_EQ(client.reply().status, 405);
  client.send(http_request("GET", "/none?secret=1", "", "Connection: close\r\n"));
  EXPECT_EQ(client.reply().status, 404);
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(server_->counts().refused_connections, 0u);
  ASSERT_TRUE(soon([&] {
    const std::lock_guard lock(mutex_);
    return records_.size() == 8;
  }));
  EXPECT_EQ(records_.back().path, "/none");
  EXPECT_EQ(records_.back().status, 404);
}

TEST_F(HttpServerTest, AnswersFromOtherThreads) {
  const uint16_t port = start();
  std::vector<std::thread> clients;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&] {
      HttpClient client(port);
      for (int n = 0; n < 10; ++n) {
        client.send(http_request("GET", "/hold?stream"));
        const HttpReply reply = client.reply();
        good += reply.whole && reply.body == std::string(100, 'y');
      }
    });
  for (int answered = 0; answered < 80;) {
    std::vector<Responder> now;
    {
      const std::lock_guard lock(mutex_);
      now.swap(held_);
    }
    for (const Responder& responder : now) {
      for (int i = 0; i < 100; ++i) responder.write("y");
      responder.end();
      ++answered;
    }
    std::this_thread::yield();
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 80);
  EXPECT_EQ(all_gone(), 0u);
}

TEST_F(HttpServerTest, ListensWhereItIsTold) {
  http::Server first({}, {}), second({}, {});
  const http::Address address = first.listen("localhost", 0);
  EXPECT_EQ(address.host, "127.0.0.1");
  EXPECT_GT(address.port, 0);
  EXPECT_EQ((http::Address{"::1", 80}.text()), "[::1]:80");
  for (const auto& [host, port, part] :
       {std::tuple("127.0.0.1", address.port, "bind failed: Address already in use"),
        std::tuple("192.0.2.1", uint16_t{0}, "192.0.2.1:0: bind failed: Cannot assign requested address"),
        std::tuple("no-such-host.invalid", uint16_t{0}, "looking up the name failed")}) {
    try {
      http::Server({}, {}).listen(host, port);
      ADD_FAILURE() << host;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUnavailable);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  const int probe = ::socket(AF_INET6, SOCK_STREAM, 0);  // a machine may have no IPv6
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool has_ipv6 = probe >= 0 && ::bind(probe, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
  ::close(probe);
  EXPECT_TRUE(!has_ipv6 || second.listen("::1", 0).host == "::1");
}

TEST_F(HttpServerTest, TooManyConnectionsAreSentAway) {
  const uint16_t port = start({.max_connections = 2});
  HttpClient one(port);
  std::optional<HttpClient> two(port);
  for (HttpClient* client : {&one, &*two}) {
    client->send(http_request("GET", "/"));
    ASSERT_EQ(client->reply().status, 200);
  }
  HttpClient three(port);
  const HttpReply reply = three.reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(three.closed());
  EXPECT_EQ(server_->counts().refused_connections, 1u);
  two.reset();
  ASSERT_TRUE(soon([&] { return server_->counts().connections == 1; }));
  HttpClient four(port);
  four.send(http_request("GET", "/"));
  EXPECT_EQ(four.reply().status, 200);
}

TEST_F(HttpServerTest, Drains) {
  const uint16_t port = start();
  HttpClient idle(port), running(port), half(port);
  half.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(half.reply().status, 100);
  half.send("ab");
  idle.send(http_request("GET", "/"));
  EXPECT_EQ(idle.reply().status, 200);
  running.send(http_request("GET", "/hold?stream"));
  ASSERT_TRUE(soon([&] { return held() == 1; }));
  server_->stop_accepting();
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(half.reply().status, 503);
  half.close();
  EXPECT_FALSE(server_->wait_until_closed(milliseconds(100)));
  EXPECT_EQ(server_->counts().exchanges, 1u);
  EXPECT_THROW(HttpClient{port}, std::runtime_error);
  held_[0].write("the end");
  held_[0].end();
  EXPECT_EQ(running.reply().body, "the end");
  EXPECT_TRUE(running.closed());
  running.close();
  EXPECT_TRUE(server_->wait_until_closed(kPatience));
  EXPECT_EQ(all_gone(), 0u);
}

TEST_F(HttpServerTest, StopTellsRunningRequests) {
  const uint16_t port = start();
  HttpClient client(port);
  client.send(http_request("GET", "/hold"));
  ASSERT_TRUE(soon([&] { return held() == 1; }));
  server_->stop();
  EXPECT_EQ(gone(), (std::vector<std::vector<Gone>>{{Gone::kStopped}}));
  EXPECT_TRUE(client.closed());
  EXPECT_FALSE(held_[0].answer({}));
  server_.reset();
  EXPECT_TRUE(held_[0].gone()) << "a responder may outlive its server";
  held_.clear();
}

}  // namespace
}  // namespace lfm2::test
