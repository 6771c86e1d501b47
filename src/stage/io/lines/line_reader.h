// Reads files one after the other, or standard input, in blocks of lines of a few megabytes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked_file.h"
#include "base/checksum.h"
#include "stage/io/lines/unpacker.h"

namespace lfm2 {

// A line that is not blank, without its line end.
struct Line {
  int64_t number = 0;  // in its file, from 1
  std::string_view text;
};

// The ending that names the format of the lines: .txt for texts.txt and texts.txt.gz.
std::filesystem::path extension_of_lines(const std::filesystem::path& path);

class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{16} << 20;

  // At least one path; "-" is standard input. Names that end in .gz or .zst are unpacked. Error(kNoInput) for a missing
  // file, even if it is not the first. `pulse` is called after every piece, and several times a second while the reader
  // waits for input. It may throw to end the reading.
  explicit LineReader(
      std::vector<std::filesystem::path> paths, std::function<void()> pulse = [] {});
  explicit LineReader(
      std::filesystem::path path, std::function<void()> pulse = [] {})
      : LineReader(std::vector{std::move(path)}, std::move(pulse)) {}

  // The next lines of one file, a few megabytes; none after the last file. They are valid until the next call. The last
  // line of a file ends with the file. Error(kData) for a line longer than kMaxLineBytes, Error(kIo) if the system
  // fails.
  const std::vector<Line>& next();
  // The first block of lines, which next() returns again. Called before next().
  const std::vector<Line>& peek();

  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  // The file of the lines that next() returned last.
  size_t file_number() const { return at_; }
  const std::filesystem::path& path() const { return paths_[at_]; }
  std::string name() const { return path() == "-" ? "standard input" : path().string(); }
  std::string where(const Line& line) const { return fmt::format("{}: line {}", name(), line.number); }
  // The checksum of everything that was read, after unpacking, and of the names of all files but the first.
  const Checksum& checksum() const { return checksum_; }

 private:
  struct OpenFile {
    FileDescriptor descriptor;
    std::unique_ptr<Unpacker> unpacker = {};  // null if the file is not packed
    bool ended = false;
    int64_t lines = 0;  // that were read
  };
  void open();
  bool open_next();
  void read_block();
  bool read_more();
  size_t read_some(std::span<char> into);
  void wait_for_input();

  std::vector<std::filesystem::path> paths_;
  size_t at_ = 0;
  std::function<void()> pulse_;
  OpenFile file_;
  bool peeked_ = false;
  std::unique_ptr<char[]> piece_;  // the buffer of one read
  std::string text_;               // text that was read and not yet consumed
  size_t used_ = 0;                // bytes of text_ that lines_ refer to
  std::vector<Line> lines_;
  Checksum checksum_;
};

}  // namespace lfm2
