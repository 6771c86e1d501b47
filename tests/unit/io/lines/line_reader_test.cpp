// Lines of files and of standard input: where they begin and end, and how long they may be.
#include "stage/io/lines/line_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

using NumberedLines = std::vector<std::pair<int64_t, std::string>>;

NumberedLines all_of(LineReader& reader) {
  NumberedLines all;
  while (true) {
    const std::vector<Line>& lines = reader.next();
    if (lines.empty()) return all;
    for (const Line& line : lines) all.emplace_back(line.number, line.text);
  }
}

class LineReaderTest : public testing::Test {
 protected:
  NumberedLines lines_of(const std::string& content) {
    make(content);
    LineReader reader(folder_ / "in.txt");
    return all_of(reader);
  }
  void make(const std::string& content) const { std::ofstream(folder_ / "in.txt", std::ios::binary) << content; }
  // What the message of the error says behind the name of the file.
  std::string refusal(const std::string& content, ExitCode code) {
    try {
      lines_of(content);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      const std::string message = error.what(), name = (folder_ / "in.txt").string() + ": ";
      return message.starts_with(name) ? message.substr(name.size()) : message;
    }
    return "accepted";
  }
  TemporaryFolder folder_;
};

TEST_F(LineReaderTest, EndsOfLines) {
  EXPECT_EQ(lines_of("a\nb\r\nc"), (NumberedLines{{1, "a"}, {2, "b"}, {3, "c"}}));
  EXPECT_EQ(lines_of("a\n"), (NumberedLines{{1, "a"}}));
  EXPECT_EQ(lines_of("a\r"), (NumberedLines{{1, "a"}}));
  // One end is taken off and nothing else: blanks, and a return within, are text.
  EXPECT_EQ(lines_of(" a \r\r\nb\rc\n"), (NumberedLines{{1, " a \r"}, {2, "b\rc"}}));
  EXPECT_EQ(lines_of(std::string("a\0b\n\xff", 5)), (NumberedLines{{1, std::string("a\0b", 3)}, {2, "\xff"}}));
}

TEST_F(LineReaderTest, BlankLinesCountButAreNotGiven) {
  EXPECT_EQ(lines_of("\n \t\r\n\na\n\n\r\n b"), (NumberedLines{{4, "a"}, {7, " b"}}));
  EXPECT_TRUE(lines_of("").empty());
  EXPECT_TRUE(lines_of("\n\r\n  ").empty());
  // More of them than a piece has bytes.
  EXPECT_EQ(lines_of(std::string(9 << 20, '\n') + "a"), (NumberedLines{{(9 << 20) + 1, "a"}}));
}

TEST_F(LineReaderTest, LinesLieAcrossPieces) {
  std::string content;
  NumberedLines expected;
  for (int i = 0; content.size() < (10u << 20); ++i) {
    expected.emplace_back(i + 1, std::to_string(i) + std::string(static_cast<size_t>(i * 7919 % 50000), 'x'));
    content += expected.back().second + (i % 3 == 0 ? "\r\n" : "\n");
  }
  EXPECT_TRUE(lines_of(content) == expected);
  content.pop_back();
  EXPECT_TRUE(lines_of(content) == expected);
}

TEST_F(LineReaderTest, AByteOrderMarkIsNoText) {
  EXPECT_TRUE(lines_of("\xef\xbb\xbf"
                       "a\n\xef\xbb\xbf"
                       "b\n") == (NumberedLines{{1, "a"},
                                                {2,
                                                 "\xef\xbb\xbf"
                                                 "b"}}));
}

TEST_F(LineReaderTest, LongestLine) {
  const std::string longest(LineReader::kMaxLineBytes, 'a');
  EXPECT_TRUE(lines_of("first\n" + longest + "\nb\n") == (NumberedLines{{1, "first"}, {2, longest}, {3, "b"}}));
  EXPECT_TRUE(lines_of(longest) == (NumberedLines{{1, longest}}));
  const std::string reason = "line 2: longer than 16777216 bytes";
  EXPECT_EQ(refusal("first\n" + longest + "a\n", ExitCode::kData), reason);
  EXPECT_EQ(refusal("first\n" + longest + "a", ExitCode::kData), reason);
  EXPECT_EQ(refusal("first\n" + longest + longest + longest, ExitCode::kData), reason);
}

TEST_F(LineReaderTest, FirstIsGivenAgain) {
  make("\n a\nb\n");
  LineReader reader(folder_ / "in.txt");
  EXPECT_EQ(reader.peek().front().text, " a");
  EXPECT_EQ(all_of(reader), (NumberedLines{{2, " a"}, {3, "b"}}));
  EXPECT_TRUE(reader.next().empty());
  make("");
  LineReader empty(folder_ / "in.txt");
  EXPECT_TRUE(empty.peek().empty());
  EXPECT_TRUE(empty.next().empty());
}

TEST_F(LineReaderTest, ChecksumIsOfTheWholeFile) {
  const std::string content = "a\r\n\n" + std::string(5 << 20, 'b') + "\n";
  make(content);
  int pieces = 0;
  LineReader reader(folder_ / "in.txt", [&] { ++pieces; });
  all_of(reader);
  Checksum whole;
  whole.add(std::as_bytes(std::span<const char>(content)));
  EXPECT_EQ(reader.checksum().hex(), whole.hex());
  EXPECT_GE(pieces, 2);
  EXPECT_EQ(reader.where({7, "x"}), (folder_ / "in.txt").string() + ": line 7");
}

TEST_F(LineReaderTest, WhatIsNoFile) {
  const auto code_of = [](const std::filesystem::path& path) {
    try {
      LineReader reader(path);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path.filename()), std::string::npos) << error.what();
      return error.code();
    }
    return ExitCode::kOk;
  };
  EXPECT_EQ(code_of(folder_ / "missing.txt"), ExitCode::kNoInput);
  EXPECT_EQ(code_of(folder_.path()), ExitCode::kData);
}

// Whoever has the other end open may never write: the pulse can end that.
TEST_F(LineReaderTest, WaitingForStandardInputCanBeEnded) {
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  const int old = dup(STDIN_FILENO);
  ASSERT_EQ(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  int pulses = 0;
  LineReader reader("-", [&] {
    if (++pulses == 3) throw Error(ExitCode::kStopped, "stopped");
  });
  EXPECT_THROW(reader.next(), Error);
  EXPECT_EQ(pulses, 3);
  dup2(old, STDIN_FILENO);
  for (const int end : {old, ends[0], ends[1]}) close(end);
}

// A pipe gives what there is, a few bytes at a time.
TEST_F(LineReaderTest, StandardInputIsAPipe) {
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  const int old = dup(STDIN_FILENO);
  ASSERT_EQ(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  close(ends[0]);
  std::thread writer([end = ends[1]] {
    for (const std::string_view part : {"fi", "rst\nsec", "\xc3", "\xa9nd\r", "\n\nlast"}) {
      EXPECT_EQ(write(end, part.data(), part.size()), static_cast<ssize_t>(part.size()));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    close(end);
  });
  LineReader reader("-");
  EXPECT_EQ(reader.name(), "standard input");
  EXPECT_EQ(reader.peek().front().text, "first");
  EXPECT_EQ(all_of(reader), (NumberedLines{{1, "first"}, {2, "sec\xc3\xa9nd"}, {4, "last"}}));
  writer.join();
  dup2(old, STDIN_FILENO);
  close(old);
}

}  // namespace
}  // namespace lfm2::test
