// A limit on the bytes of many owners together, such as request bodies or unsent answers. Thread safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace lfm2::http {

class ByteBudget {
 public:
  explicit ByteBudget(size_t limit) : limit_(limit) {}

  bool reserve(size_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= limit_) return true;
    used_.fetch_sub(bytes);
    return false;
  }
  void release(size_t bytes) { used_.fetch_sub(bytes); }
  size_t used() const { return used_; }

 private:
  const size_t limit_;
  std::atomic<size_t> used_ = 0;
};

// One owner's part of a budget, released by the destructor. A default-constructed share has no budget.
class ByteShare {
 public:
  ByteShare() = default;
  explicit ByteShare(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
  ByteShare(ByteShare&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteShare& operator=(ByteShare&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ByteShare() {
    if (budget_ != nullptr) budget_->release(bytes_);
  }

  bool grow(size_t bytes) {
    if (!budget_->reserve(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  void shrink(size_t bytes) {
    budget_->release(bytes);
    bytes_ -= bytes;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<ByteBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace lfm2::http
