// Bytes that grow: in memory while they are few, in a temporary file without a name beyond that, so that a job
// may have more text than its host has memory. The file is in $TMPDIR, else in /var/tmp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/checked_file.h"

namespace lfm2 {

class TemporaryRange {
 public:
  // Room for `most` bytes, of which the first `in_memory` take memory. `what` (a literal) is the content's name for
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
  // Makes room for `bytes` bytes or more; new ones are 0, all others stay as they are, but data() may move.
  // Error(kData) beyond `most`, Error(kUnavailable) where neither a temporary file nor memory can hold them.
  void grow(uint64_t bytes);

  // Whoever goes through the bytes calls this from time to time: what lies in the file need not stay in memory, from
  // which it would only go once memory is short. Nothing that was written is lost.
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
  std::vector<uint64_t> piece_ends_;  // where each call of grow() ended
  FileDescriptor file_;
  uint64_t file_begin_ = 0, file_bytes_ = 0;  // the range in the file: one piece, after the file's first bytes
  bool file_is_full_ = false;
};

}  // namespace lfm2
