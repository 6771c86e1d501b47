// The token ids of a job's samples, back to back: in memory while they are few, else in a temporary file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>

#include "stage/io/samples/temporary_range.h"

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
  TokenIds(TokenIds&& other) noexcept : range_(std::move(other.range_)), size_(std::exchange(other.size_, 0)) {}
  TokenIds& operator=(TokenIds&& other) noexcept {
    range_ = std::move(other.range_);
    std::swap(size_, other.size_);
    return *this;
  }

  size_t size() const { return size_; }
  int32_t* data() { return reinterpret_cast<int32_t*>(range_.data()); }
  const int32_t* data() const { return reinterpret_cast<const int32_t*>(range_.data()); }
  const int32_t* begin() const { return data(); }
  const int32_t* end() const { return data() + size_; }
  int32_t operator[](size_t at) const { return data()[at]; }
  operator std::span<const int32_t>() const { return {data(), size_}; }
  bool operator==(const TokenIds& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

  // Each of these throws Error(kData) beyond kMaxIds ids, and Error(kUnavailable) if neither a temporary file nor
  // memory can hold them. They invalidate pointers.
  void push_back(int32_t id) {
    reserve(size_ + 1);
    data()[size_++] = id;
  }
  void append(std::span<const int32_t> ids) {
    if (ids.empty()) return;
    reserve(size_ + ids.size());
    std::memcpy(data() + size_, ids.data(), ids.size_bytes());
    size_ += ids.size();
  }
  void resize(size_t size) {  // new ids are 0 or have stale values
    reserve(size);
    size_ = size;
  }
  void reserve(size_t ids) {
    if (ids * sizeof(int32_t) > range_.capacity()) range_.grow(ids * sizeof(int32_t));
  }

  void set_memory_limit(uint64_t ids) { range_.set_memory_limit(ids * sizeof(int32_t)); }  // a test lowers it
  bool is_on_disk() const { return range_.is_on_disk(); }

 private:
  TemporaryRange range_{kMaxIds * sizeof(int32_t), uint64_t{64} << 20, "token ids"};
  size_t size_ = 0;
};

}  // namespace lfm2
