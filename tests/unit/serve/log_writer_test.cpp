#include "serve/log_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

namespace lfm2::serve {
namespace {

using Clock = std::chrono::steady_clock;

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    close_reader();
    close_writer();
  }
  int writer() const { return ends_[1]; }
  void close_writer() { close(ends_[1]); }
  void close_reader() { close(ends_[0]); }
  // Everything until the writer is closed, or `most` bytes have come.
  std::string read_all(size_t most = SIZE_MAX) const {
    std::string text;
    char buffer[4096];
    for (ssize_t bytes = 0; text.size() < most && (bytes = ::read(ends_[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(bytes));
    return text;
  }

 private:
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  int ends_[2] = {-1, -1};
};

TEST(LogWriterTest, WritesAllLinesInOrder) {
  Pipe pipe;
  std::string expected;
  std::string found;
  std::thread reader([&] { found = pipe.read_all(); });
  {
    LogWriter log(pipe.writer());
    for (int i = 0; i < 20000; ++i) {
      log.write(std::to_string(i));
      expected += std::to_string(i) + "\n";
    }
    EXPECT_EQ(log.dropped(), 0u);
  }
  pipe.close_writer();
  reader.join();
  EXPECT_EQ(found, expected);
}

TEST(LogWriterTest, DoesNotWaitForAReaderThatDoesNotRead) {
  Pipe pipe;
  constexpr int kLines = 5000, kBytes = 100;
  uint64_t dropped = 0;
  std::string found;
  std::thread reader;
  {
    LogWriter log(pipe.writer(), 10'000);
    const auto begin = Clock::now();
    for (int i = 0; i < kLines; ++i) log.write(std::string(kBytes - 1, 'x'));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
    dropped = log.dropped();
    // A pipe takes 64 KiB, the writer's thread and its queue 10 000 bytes each.
    EXPECT_GT(dropped, 3000u);
    reader = std::thread([&] { found = pipe.read_all(); });
  }
  pipe.close_writer();
  reader.join();
  const std::string word = "{\"dropped_lines\":";
  const size_t at = found.find(word);
  ASSERT_NE(at, std::string::npos);
  uint64_t told = 0;
  for (size_t next = at; next != std::string::npos; next = found.find(word, next + 1))
    told += std::stoull(found.substr(next + word.size()));
  EXPECT_EQ(told, dropped);
  EXPECT_EQ(std::count(found.begin(), found.end(), 'x'), static_cast<int64_t>((kLines - dropped) * (kBytes - 1)));
}

TEST(LogWriterTest, EndsAlthoughNobodyReads) {
  Pipe pipe;
  const auto begin = Clock::now();
  const std::string line(1 << 20, 'x');
  { LogWriter(pipe.writer()).write(line); }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(pipe.read_all(line.size() + 1), line + "\n") << "the thread that was left behind ends its write";
}

TEST(LogWriterTest, AReaderThatIsGoneIsNoSignal) {
  Pipe pipe;
  pipe.close_reader();
  LogWriter log(pipe.writer());
  log.write("one");
  for (int i = 0; i < 5000 && log.dropped() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(log.dropped(), 1u);
}

}  // namespace
}  // namespace lfm2::serve
