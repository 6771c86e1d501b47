// Lays out arrays of 4-byte values one behind the other in one piece of memory, so that a single copy moves them all.
// Used for the index arrays of micro-batches and steps, and for the results of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/tensor.h"

namespace lfm2 {

class ArrayLayout {
 public:
  // Where `memory` is null, the layout only adds up bytes().
  explicit ArrayLayout(std::byte* memory) : memory_(memory) {}

  // The array behind those that were taken before.
  Tensor take(DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor tensor(memory_ == nullptr ? nullptr : memory_ + bytes_, dtype, dims);
    bytes_ += bytes_for(tensor.numel());
    return tensor;
  }
  Tensor take_ints(std::initializer_list<int64_t> dims) { return take(DType::kI32, dims); }
  size_t bytes() const { return bytes_; }

  // The bytes that an array of so many values takes: every array begins at a multiple of 16 bytes.
  static constexpr size_t bytes_for(int64_t values) {
    constexpr int64_t kAligned = 4;
    return static_cast<size_t>((values + kAligned - 1) / kAligned * kAligned) * sizeof(int32_t);
  }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

}  // namespace lfm2
