// Aligned host memory: behind CpuBackend::allocate and for the operators' scratch.
#pragma once

#include <cstddef>

#include "kernels/backend.h"

namespace lfm2 {

// 64-byte aligned and untouched; Error(kUnavailable) where there is not enough memory. Never null, also for 0 bytes.
Buffer allocate_aligned(size_t bytes);

// Scratch that an operator sizes at each call; it grows to the largest size asked for and stays there.
class Workspace {
 public:
  template <class T>
  T* reserve(size_t count) {
    if (buffer_.bytes() < count * sizeof(T)) {
      buffer_ = Buffer();  // first give back the old one
      buffer_ = allocate_aligned(count * sizeof(T));
    }
    return reinterpret_cast<T*>(buffer_.data());
  }

 private:
  Buffer buffer_;
};

}  // namespace lfm2
