// Reads files and standard input in blocks of lines of a few megabytes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked_file.h"
#include "base/checksum.h"
#include "stage/io/lines/unpacker.h"

namespace lfm2 {

// A line that is not blank, without its line end.
struct Line {
  int64_t number = 0;  // in the file, from 1
  std::string_view text;
};

// The ending that names the format of the lines: .txt for texts.txt and texts.txt.gz.
std::filesystem::path extension_of_lines(const std::filesystem::path& path);

class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{16} << 20;

  // "-" is standard input; names that end in .gz or .zst are unpacked. Error(kNoInput) for a missing file. `pulse` is
  // called after every piece, and several times a second while the reader waits for input. It may throw to end the
  // reading.
  explicit LineReader(
      std::filesystem::path path, std::function<void()> pulse = [] {});

  // The next lines, a few megabytes; none at the end. They are valid until the next call. Error(kData) for a line
  // longer than kMaxLineBytes, Error(kIo) if the system fails.
  const std::vector<Line>& next();
  // The first block of lines, which next() returns again. Called before next().
  const std::vector<Line>& peek();

  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_ == "-" ? "standard input" : path_.string(); }
  std::string where(const Line& line) const { return fmt::format("{}: line {}", name(), line.number); }
  // The checksum of everything that was read, after unpacking.
  const Checksum& checksum() const { return checksum_; }

 private:
  void read_block();
  bool read_more();
  size_t read_some(std::span<char> into);
  void wait_for_input();

  std::filesystem::path path_;
  std::function<void()> pulse_;
  FileDescriptor file_;
  std::unique_ptr<Unpacker> unpacker_;  // null if the file is not packed
  bool ended_ = false, peeked_ = false;
  std::unique_ptr<char[]> piece_;  // the buffer of one read
  std::string text_;               // text that was read and not yet consumed
  size_t used_ = 0;                // bytes of text_ that lines_ refer to
  int64_t number_ = 0;
  std::vector<Line> lines_;
  Checksum checksum_;
};

}  // namespace lfm2
