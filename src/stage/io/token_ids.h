// The token ids of a job's samples, back to back: in memory while they are few, in a temporary file without a name
// beyond that, so that a job may have more text than its host has memory. The file is in $TMPDIR, else in /var/tmp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "stage/support/checked_file.h"

namespace lfm2 {

class TokenIds {
 public:
  static constexpr uint64_t kMaxIds = uint64_t{1} << 31;  // of a whole job

  TokenIds() = default;
  TokenIds(std::initializer_list<int32_t> ids) { append(std::span(ids.begin(), ids.size())); }
  template <class Iterator>
  TokenIds(Iterator begin, Iterator end) {
    for (; begin != end; ++begin) push_back(*begin);
  }
  TokenIds(TokenIds&& other) noexcept { swap(other); }
  TokenIds& operator=(TokenIds&& other) noexcept {
    swap(other);
    return *this;
  }
  ~TokenIds();

  size_t size() const { return size_; }
  int32_t* data() { return data_; }
  const int32_t* data() const { return data_; }
  const int32_t* begin() const { return data_; }
  const int32_t* end() const { return data_ + size_; }
  int32_t operator[](size_t at) const { return data_[at]; }
  operator std::span<const int32_t>() const { return {data_, size_}; }
  bool operator==(const TokenIds& other) const;

  // Each of these throws Error(kData) beyond kMaxIds ids, and Error(kUnavailable) where neither a temporary file nor
  // memory can hold them. Pointers stay valid.
  void push_back(int32_t id) {
    if (size_ == capacity_) grow(size_ + 1);
    data_[size_++] = id;
  }
  void append(std::span<const int32_t> ids);
  void resize(size_t size);  // new ids are 0 or what stood there before
  void reserve(size_t ids) {
    if (ids > capacity_) grow(ids);
  }

  // The ids that stay in memory; a test lowers it.
  void set_memory_limit(uint64_t ids) { memory_ids_ = ids; }
  bool is_on_disk() const { return file_.get() >= 0; }

 private:
  void swap(TokenIds& other) noexcept;
  void grow(uint64_t ids);
  bool map_file(uint64_t first_byte, uint64_t bytes);
  void map_memory(uint64_t first_byte, uint64_t bytes, uint64_t ids);  // for a job of `ids` ids

  int32_t* data_ = nullptr;  // a range of addresses for kMaxIds ids, mapped up to capacity_
  size_t size_ = 0, capacity_ = 0;
  uint64_t memory_ids_ = uint64_t{16} << 20;
  FileDescriptor file_;
  uint64_t file_bytes_ = 0;
};

}  // namespace lfm2
