// The server over real sockets: clients that are fast, slow, rude or many.
#include "serve/http/server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "kernels/error.h"
#include "serve/http/router.h"
#include "support/http_client.h"

namespace lfm2::test {
namespace {

using http::Answer;
using http::Gone;
using http::Limits;
using http::Request;
using http::Responder;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = seconds(30);

// Whether it becomes true within the patience.
template <class F>
bool soon(F&& true_now, milliseconds patience = kPatience) {
  for (const auto end = Clock::now() + patience; Clock::now() < end; std::this_thread::sleep_for(milliseconds(2)))
    if (true_now()) return true;
  return true_now();
}

// A server with a few handlers: / says hello, /echo the body, /hold keeps the request for the test, /stream writes
// without end from a thread of its own.
class HttpServerTest : public ::testing::Test {
 protected:
  uint16_t start(Limits limits = {}) {
    router_.add("GET", "/", [](Request&&, const Responder& responder) { responder.answer({.body = "hello"}); });
    router_.add("POST", "/echo", [](Request&& request, const Responder& responder) {
      responder.answer({.body = std::move(request.body)});
    });
    router_.add("GET", "/hold", [this](Request&& request, Responder responder) {
      const std::lock_guard lock(mutex_);
      const size_t index = gone_.size();
      gone_.emplace_back();
      responder.on_gone([this, index](Gone reason) {
        const std::lock_guard again(mutex_);
        gone_[index].push_back(reason);
      });
      if (request.query == "stream") responder.begin_stream(200, "text/plain");
      held_.push_back(std::move(responder));
    });
    router_.add("GET", "/stream", [this](Request&&, Responder responder) {
      responder.begin_stream(200, "text/plain");
      const std::lock_guard lock(mutex_);
      threads_.emplace_back([this, responder = std::move(responder)] {
        const std::string text(1000, 'x');
        while (responder.write(text)) {
          written_ += text.size();
          std::this_thread::sleep_for(milliseconds(1));
        }
      });
    });
    server_.emplace(limits, http::Service{.admit = [this](const Request& request) { return router_.refusal(request); },
                                          .handle =
                                              [this](Request&& request, Responder responder) {
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
  std::vector<std::vector<Gone>> gone() {
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
  std::vector<Responder> held_;  // guarded by mutex_, as are the next three
  std::vector<std::vector<Gone>> gone_;
  std::vector<http::AccessRecord> records_;
  std::vector<std::thread> threads_;
  std::atomic<size_t> written_ = 0;
  std::optional<http::Server> server_;
};

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
    clients.emplace_back([&, i] {
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

TEST_F(HttpServerTest, AQueuedRequestHearsThatItsClientIsGone) {
  const uint16_t port = start();
  for (const bool rudely : {false, true}) {
    const size_t before = all_gone(), requests = held();
    HttpClient client(port);
    client.send(http_request("GET", "/hold"));
    ASSERT_TRUE(soon([&] { return held() == requests + 1; }));
    EXPECT_EQ(all_gone(), before);
    rudely ? client.reset() : client.close();
    EXPECT_TRUE(soon([&] { return all_gone() == before + 1; }));
  }
  EXPECT_TRUE(soon([&] { return server_->counts().connections == 0; }));
}

// Behind so many pipelined requests the server does not read on, and must still notice.
TEST_F(HttpServerTest, AClientWithInputThatWaitsIsNoticedToo) {
  const uint16_t port = start({.max_header_bytes = 1000, .hang_up_look_time = milliseconds(50)});
  HttpClient client(port);
  client.send(http_request("GET", "/hold"));
  ASSERT_TRUE(soon([&] { return held() == 1; }));
  std::string many;
  while (many.size() < 500'000) many += http_request("GET", "/");
  std::thread sender([&] { client.send(many); });  // until the socket is full, or all of it went
  sender.join();
  std::this_thread::sleep_for(milliseconds(120));
  EXPECT_EQ(all_gone(), 0u) << "it is still there";
  client.close();
  EXPECT_TRUE(soon([&] { return all_gone() == 1; }));
}

TEST_F(HttpServerTest, ClientsThatGoAtRandomInstants) {
  const uint16_t port = start();
  std::atomic<bool> works = true;
  std::thread worker([&] {  // streams to whoever is there, and ends some
    std::mt19937 random(1);
    for (int answered = 0; works;) {
      std::vector<Responder> now;
      {
        const std::lock_guard lock(mutex_);
        now = held_;
      }
      for (const Responder& responder : now) responder.write("some text\n");
      std::this_thread::sleep_for(milliseconds(1));
      answered += static_cast<int>(random() % 2);
    }
  });
  constexpr int kThreads = 8, kClients = 25;
  std::vector<std::thread> clients;
  std::atomic<int> began = 0;
  for (int i = 0; i < kThreads; ++i)
    clients.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      for (int n = 0; n < kClients; ++n) {
        HttpClient client(port);
        client.send(http_request("GET", "/hold?stream"));
        if (client.reply(true).status == 200) ++began;
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
        if (random() % 2 == 0) client.reset();
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(began, kThreads * kClients);
  EXPECT_TRUE(soon([&] { return all_gone() == kThreads * kClients; }));
  EXPECT_TRUE(soon([&] { return server_->counts().connections == 0; }));
  works = false;
  worker.join();
  for (const auto& one : gone()) EXPECT_EQ(one.size(), 1u);
  EXPECT_EQ(server_->counts().unsent_bytes, 0u);
  for (const Responder& responder : held_) EXPECT_FALSE(responder.write("x"));
}

TEST_F(HttpServerTest, ASlowReaderHoldsBackNobody) {
  const uint16_t port = start({.max_unsent_bytes = 100'000});
  HttpClient slow(port, 4096);
  slow.send(http_request("GET", "/stream"));
  HttpClient other(port);
  const auto begin = Clock::now();
  for (int i = 0; i < 50; ++i) {
    other.send(http_request("GET", "/"));
    ASSERT_EQ(other.reply().status, 200);
  }
  EXPECT_LT(Clock::now() - begin, seconds(20));
  EXPECT_TRUE(soon([&] { return server_->counts().connections == 1; })) << "the slow one is disconnected";
  // Its own socket's memory, the kernel's on our side, and the limit.
  EXPECT_LT(written_, 5'000'000u);
}

TEST_F(HttpServerTest, AFastReaderGetsAll) {
  const uint16_t port = start({.max_unsent_bytes = 100'000});
  HttpClient client(port);
  client.send(http_request("GET", "/stream"));
  size_t read = 0;
  while (read < 500'000) {
    const std::string part = client.read_some(kPatience);
    ASSERT_FALSE(part.empty());
    read += part.size();
  }
}

size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_F(HttpServerTest, LargeBodiesTakeNoMemory) {
  const uint16_t port = start({.max_body_bytes = 1 << 20, .linger_time = milliseconds(200)});
  const size_t before = resident_bytes();
  const std::string piece(1 << 16, 'x');
  for (int i = 0; i < 5; ++i) {
    HttpClient client(port);
    client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n");
    for (int n = 0; n < 1600 && client.send(piece); ++n) continue;  // 100 MB, or until the server has enough of it
    HttpClient chunks(port);
    chunks.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int n = 0; n < 1600 && chunks.send("10000\r\n" + piece + "\r\n"); ++n) continue;
    EXPECT_LT(server_->counts().body_bytes, size_t{3} << 20);
  }
  EXPECT_LT(resident_bytes(), before + (size_t{64} << 20));
  HttpClient patient(port);
  patient.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_EQ(patient.reply().status, 413);
}

TEST_F(HttpServerTest, HeaderFloods) {
  const uint16_t port = start();
  for (const char* field : {"a: b\r\n", "a:\r\n"}) {
    HttpClient client(port);
    client.send("GET / HTTP/1.1\r\n");
    for (int i = 0; i < 100'000 && client.send(field); ++i) continue;
    EXPECT_TRUE(client.closed());
  }
  HttpClient client(port);
  client.send("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(17 << 10, 'x'));
  EXPECT_EQ(client.reply().status, 431);
}

// A thousand clients that send a byte now and then, with times scaled down. The others are answered meanwhile, and the
// thousand are ended by the total time that a request has, although a byte of each always came just before.
TEST_F(HttpServerTest, AThousandSlowSenders) {
  const uint16_t port =
      start({.max_connections = 1900, .read_time = milliseconds(4000), .linger_time = milliseconds(100)});
  constexpr size_t kSlow = 900;  // the limit of descriptors is 1024 on most machines, and both ends are in this process
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const size_t slow = files.rlim_cur >= 2100 ? 1000 : std::min<size_t>(kSlow, files.rlim_cur / 2 - 60);
  std::vector<HttpClient> clients;
  for (size_t i = 0; i < slow; ++i) clients.emplace_back(port);
  ASSERT_TRUE(soon([&] { return server_->counts().connections == slow; }));
  const std::string request = http_request("GET", "/");
  std::atomic<bool> ends = false;
  std::thread sender([&] {
    for (size_t at = 0; !ends; at = (at + 1) % 20)  // never the whole head
      for (HttpClient& client : clients) client.send(std::string_view(request).substr(at, 1));
  });
  int answered = 0;
  milliseconds longest{0};
  const auto begin = Clock::now();
  while (server_->counts().connections > 1 && Clock::now() - begin < seconds(60)) {
    const auto asked = Clock::now();
    HttpClient client(port);
    client.send(http_request("GET", "/", "", "Connection: close\r\n"));
    ASSERT_EQ(client.reply().body, "hello");
    longest = std::max(longest, std::chrono::duration_cast<milliseconds>(Clock::now() - asked));
    ++answered;
    std::this_thread::sleep_for(milliseconds(5));
  }
  ends = true;
  sender.join();
  EXPECT_LE(server_->counts().connections, 1u);
  EXPECT_GE(Clock::now() - begin, seconds(2));
  EXPECT_GT(answered, 20);
  EXPECT_LT(longest, seconds(10));
  RecordProperty("longest_ms", static_cast<int>(longest.count()));
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
  HttpClient idle(port), running(port);
  idle.send(http_request("GET", "/"));
  EXPECT_EQ(idle.reply().status, 200);
  running.send(http_request("GET", "/hold?stream"));
  ASSERT_TRUE(soon([&] { return held() == 1; }));
  server_->stop_accepting();
  EXPECT_TRUE(idle.closed());
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
