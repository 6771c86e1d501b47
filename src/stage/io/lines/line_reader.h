// Reads files and standard input line by line, some megabytes at a time.
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

// A line that is not blank, without its end.
struct Line {
  int64_t number = 0;  // in the file, from 1 on
  std::string_view text;
};

// The ending that names the format of a file's lines: .txt of texts.txt and of texts.txt.gz.
std::filesystem::path extension_of_lines(const std::filesystem::path& path);

class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{16} << 20;

  // "-" is standard input; what ends in .gz or .zst is unpacked. Error(kNoInput) where there is no such file. `pulse`
  // is called with every piece that is read, and some times a second while whoever writes the input lets this wait; it
  // may throw to end that.
  explicit LineReader(
      std::filesystem::path path, std::function<void()> pulse = [] {});

  // The next lines, some megabytes of them; none at the end. They are valid until the next call. Error(kData) for a
  // line that is longer than kMaxLineBytes, Error(kIo) where the system fails.
  const std::vector<Line>& next();
  // The lines that the first call of next() gives, which gives them again. Called before next().
  const std::vector<Line>& peek();

  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_ == "-" ? "standard input" : path_.string(); }
  std::string where(const Line& line) const { return fmt::format("{}: line {}", name(), line.number); }
  // The checksum of everything that was read, as it was before it was packed.
  const Checksum& checksum() const { return checksum_; }

 private:
  void read_block();
  bool read_more();
  size_t read_some(std::span<char> into);
  void wait_for_input();

  std::filesystem::path path_;
  std::function<void()> pulse_;
  FileDescriptor file_;
  std::unique_ptr<Unpacker> unpacker_;  // null where the file is not packed
  bool ended_ = false, peeked_ = false;
  std::unique_ptr<char[]> piece_;  // what one call reads
  std::string text_;               // what was read and the caller has not passed yet
  size_t used_ = 0;                // bytes of text_ that lines_ stand in
  int64_t number_ = 0;
  std::vector<Line> lines_;
  Checksum checksum_;
};

}  // namespace lfm2
