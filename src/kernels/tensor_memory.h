// Tensors of a backend that live as long as their owner, and the sum of their bytes.
#pragma once

#include <vector>

#include "kernels/backend.h"

namespace lfm2 {

class TensorMemory {
 public:
  explicit TensorMemory(Backend& backend) : backend_(backend) {}

  Tensor allocate(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor tensor(nullptr, dtype, dims);
    buffers_.push_back(backend_.allocate(tensor.bytes()));
    tensor.data = buffers_.back().data();
    bytes_ += tensor.bytes();
    return tensor;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  Backend& backend_;
  std::vector<Buffer> buffers_;
  uint64_t bytes_ = 0;
};

}  // namespace lfm2
