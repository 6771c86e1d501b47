// Clients that go, do not read, send too much or too slowly: the others are served, and nothing is left behind.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "support/http_client.h"
#include "support/http_server_test.h"

namespace lfm2::test {
namespace {

class RudeClientsTest : public HttpServerTest {};

TEST_F(RudeClientsTest, AQueuedRequestHearsThatItsClientIsGone) {
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
TEST_F(RudeClientsTest, AClientWithInputThatWaitsIsNoticedToo) {
  const uint16_t port = start({.max_header_bytes = 1000, .hang_up_look_time = milliseconds(50)});
  HttpClient client(port);
  client.send(http_request("GET", "/hold"));
  ASSERT_TRUE(soon([&] { return held() == 1; }));
  std::string many;
  while (many.size() < 500'000) many += http_request("GET", "/");
  client.send(many);  // the sockets have room for it
  std::this_thread::sleep_for(milliseconds(120));
  EXPECT_EQ(all_gone(), 0u) << "it is still there";
  client.close();
  EXPECT_TRUE(soon([&] { return all_gone() == 1; }));
}

TEST_F(RudeClientsTest, ClientsThatGoAtRandomInstants) {
  const uint16_t port = start();
  std::atomic<bool> works = true;
  std::thread worker([&] {  // streams to whoever is there
    while (works) {
      std::vector<Responder> now;
      {
        const std::lock_guard lock(mutex_);
        now = held_;
      }
      for (const Responder& responder : now) responder.write("some text\n");
      std::this_thread::sleep_for(milliseconds(1));
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

TEST_F(RudeClientsTest, ASlowReaderHoldsBackNobody) {
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

TEST_F(RudeClientsTest, AFastReaderGetsAll) {
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

TEST_F(RudeClientsTest, LargeBodiesTakeNoMemory) {
  const uint16_t port = start({.max_body_bytes = 1 << 20, .linger_time = milliseconds(200)});
  [[maybe_unused]] const size_t before = resident_bytes();
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
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)  // they keep freed memory
  EXPECT_LT(resident_bytes(), before + (size_t{64} << 20));
#endif
  HttpClient patient(port);
  patient.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_EQ(patient.reply().status, 413);
}

TEST_F(RudeClientsTest, HeaderFloods) {
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
TEST_F(RudeClientsTest, AThousandSlowSenders) {
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
  std::thread sender([&] {  // 20 bytes in the time that a whole request has, so that no head is ever whole
    for (size_t at = 0; !ends; at = std::min<size_t>(at + 1, 20)) {
      for (HttpClient& client : clients) client.send(std::string_view(request).substr(at, 1));
      std::this_thread::sleep_for(milliseconds(250));
    }
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
  {
    const std::lock_guard lock(mutex_);
    const auto late = [](const http::AccessRecord& record) { return record.status == 408; };
    EXPECT_EQ(static_cast<size_t>(std::count_if(records_.begin(), records_.end(), late)), slow);
  }
  EXPECT_GT(answered, 20);
  EXPECT_LT(longest, seconds(10));
  RecordProperty("longest_ms", static_cast<int>(longest.count()));
}

}  // namespace
}  // namespace lfm2::test
