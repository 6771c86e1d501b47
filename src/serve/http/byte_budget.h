// A limit on the bytes of many owners together, such as request bodies or unsent answers. Thread safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
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

// The bytes of an answer on their way to the client, within the limit on all answers together. An exchange guards it
// with its lock.
class Outbox {
 public:
  explicit Outbox(std::shared_ptr<ByteBudget> budget) : unsent_(std::move(budget)) {}

  void add(std::string_view text) {  // breaks the answer if the limit is exceeded
    if (unsent_.grow(text.size()))
      bytes_ += text;
    else
      broken_ = true;
  }
  std::string pop() { return std::exchange(bytes_, {}); }  // the bytes to be sent next
  void sent(size_t bytes) { unsent_.shrink(bytes); }       // of the bytes that pop() returned
  void drop() {                                            // nothing more will be sent
    bytes_ = {};
    unsent_ = {};
  }

  void break_off() { broken_ = true; }
  bool broken() const { return broken_; }            // the rest cannot be sent
  size_t unsent() const { return unsent_.bytes(); }  // including bytes that pop() returned

 private:
  std::string bytes_;
  ByteShare unsent_;
  bool broken_ = false;
};

}  // namespace lfm2::http
