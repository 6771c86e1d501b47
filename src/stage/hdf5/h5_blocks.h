// Blocks of an HDF5 file as bytes: a bounds-checked cursor, and a registry in which no two blocks may overlap. Used
// only by the scan.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked_file.h"
#include "base/error.h"

namespace lfm2::h5 {

inline constexpr uint64_t kUndefined = ~uint64_t{0};  // HDF5's undefined address
inline constexpr size_t kChecksumBytes = 4;

size_t bytes_for(uint64_t limit);  // the number of bytes for values up to `limit`

// Reads little-endian numbers from front to back. Error(kData) if the block ends too early.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }
  std::span<const std::byte> read(size_t count);
  void skip(size_t count) { read(count); }
  uint64_t number(size_t bytes);  // a number of 1 to 8 bytes
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  std::string text(size_t bytes);
  // Expects the signature and, if given, the version after it.
  void expect_signature(std::string_view signature, std::optional<uint8_t> version = {});
  void expect_version(uint8_t version);
  [[noreturn]] void refuse(const std::string& message) const;

 private:
  std::span<const std::byte> bytes_;
  std::string where_;  // file, structure and address, as messages name them
  size_t position_ = 0;
};

// A part of the file that belongs to one structure.
struct Extent {
  uint64_t first = 0, bytes = 0;
  std::string what;  // "dataset x", "object header of x"
  uint64_t end() const { return first + bytes; }
};

using Block = std::vector<std::byte>;

// The blocks of one file. Each byte belongs to at most one block, so a chain of addresses cannot loop.
class Blocks {
 public:
  explicit Blocks(const CheckedFile& file) : file_(file) {}

  const CheckedFile& file() const { return file_; }
  std::string where(uint64_t address, const std::string& what) const;
  [[noreturn]] void refuse(uint64_t address, const std::string& what, const std::string& message) const;

  // Reads up to `bytes` bytes at `address`, fewer at the end of the file, without claiming them.
  Block peek(uint64_t address, uint64_t bytes, const std::string& what);
  // Claims the extent for `what`. Error(kData) if it exceeds the file or overlaps a claimed one.
  void claim(uint64_t address, uint64_t bytes, const std::string& what);
  Block read(uint64_t address, uint64_t bytes, const std::string& what);  // claims the extent and reads it
  // Like read(); the block's last four bytes must be the checksum of all bytes before them.
  Block read_checked(uint64_t address, uint64_t bytes, const std::string& what);
  void verify(std::span<const std::byte> block, uint32_t stored, uint64_t address, const std::string& what) const;

  // Counts bytes that were read or copied. Error(kData) above the limit of one scan.
  void charge(uint64_t bytes, uint64_t address, const std::string& what);

  std::vector<Extent> extents() const;

 private:
  const CheckedFile& file_;
  std::map<uint64_t, Extent> extents_;  // keyed by the first byte
  uint64_t read_bytes_ = 0;
};

}  // namespace lfm2::h5
