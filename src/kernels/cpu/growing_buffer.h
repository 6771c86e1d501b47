// Aligned host memory: what CpuBackend::allocate returns, and the scratch of the operators.
#pragma once

#include <cstddef>

#include "kernels/backend.h"

namespace lfm2 {

// 64-byte aligned, not yet touched, and never null, not even for 0 bytes. Error(kUnavailable) if there is not enough
// memory.
Buffer allocate_aligned(size_t bytes);

// Scratch that an operator sizes at each call. It grows to the largest size that was asked for, and stays there.
class GrowingBuffer {
 public:
  template <class T>
  T* reserve(size_t count) {
    if (buffer_.bytes() < count * sizeof(T)) {
      buffer_ = Buffer();  // frees the old memory first
      buffer_ = allocate_aligned(count * sizeof(T));
    }
    return reinterpret_cast<T*>(buffer_.data());
  }

 private:
  Buffer buffer_;
};

}  // namespace lfm2
