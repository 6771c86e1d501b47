// A growing array of bytes, in memory while it is small, else in an unnamed temporary file. So a job may have more text
// than its host has memory. The file is in $TMPDIR, else in /var/tmp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/checked_file.h"

namespace lfm2 {

class TemporaryRange {
 public:
  // At most `most` bytes, of which the first `in_memory` stay in memory. `what` (a literal) names the content in
  // messages.
  TemporaryRange(uint64_t most, uint64_t in_memory, const char* what)
      : most_(most), in_memory_(in_memory), what_(what) {}
  TemporaryRange(TemporaryRange&& other) noexcept : TemporaryRange(other.most_, other.in_memory_, other.what_) {
    swap(other);
  }
  TemporaryRange& operator=(TemporaryRange&& other) noexcept {
    swap(other);
    return *this;
  }
  ~TemporaryRange();

  std::byte* data() const { return data_; }
  uint64_t capacity() const { return capacity_; }
  // Grows the array to at least `bytes` bytes. New bytes are 0; others keep their values, but data() may move.
  // Error(kData) beyond `most`, Error(kUnavailable) if neither a temporary file nor memory can hold them.
  void grow(uint64_t bytes);

  // Code that walks through the bytes calls this from time to time. It lets the kernel drop the file's pages from
  // memory at once, instead of only when memory is short. No data is lost.
  void rest() const;

  void set_memory_limit(uint64_t bytes) { in_memory_ = bytes; }  // a test lowers it
  bool is_on_disk() const { return file_.get() >= 0; }

 private:
  void swap(TemporaryRange& other) noexcept;
  void set_addresses_aside(uint64_t bytes);
  bool map_file(uint64_t first, uint64_t bytes);
  void map_memory(uint64_t first, uint64_t bytes, uint64_t wanted);

  uint64_t most_, in_memory_;
  const char* what_;
  std::byte* data_ = nullptr;  // `addresses_` bytes of addresses, mapped up to capacity_
  uint64_t addresses_ = 0, capacity_ = 0;
  std::vector<uint64_t> piece_ends_;  // the end of each piece that grow() added
  FileDescriptor file_;
  uint64_t file_begin_ = 0, file_bytes_ = 0;  // the range in the file, which is one piece
  bool file_is_full_ = false;
};

}  // namespace lfm2
