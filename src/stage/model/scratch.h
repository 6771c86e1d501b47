// The memory for activations inside a layer: tensors are allocated in order from one buffer and all freed at once. A
// forward that only measures finds the buffer's size.
#pragma once

#include <algorithm>

#include "kernels/backend.h"

namespace lfm2 {

class Scratch {
 public:
  Scratch() = default;  // measures only: tensors allocated from it have no memory
  explicit Scratch(Buffer buffer) : buffer_(std::move(buffer)) {}

  Tensor allocate(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor tensor(buffer_.data() == nullptr ? nullptr : buffer_.data() + used_, dtype, dims);
    used_ += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    expect(buffer_.data() == nullptr || used_ <= buffer_.bytes(), "Scratch: smaller than what was measured");
    return tensor;
  }
  // Rows for Ops::quantize, with scales of `group` elements.
  Tensor allocate_quantized(std::initializer_list<int64_t> dims, int64_t group) {
    Tensor tensor = allocate(DType::kF8, dims);
    const int64_t rows = tensor.numel() / tensor.k();
    tensor.scales = {.group = group, .stride = rows};
    tensor.scales.data = allocate(DType::kF32, {tensor.scales.groups(tensor.k()), rows}).as<float>();
    return tensor;
  }
  // Rows that a product with w multiplies: of `dtype`, or for Ops::quantize if w is fp8.
  Tensor allocate_for(const Tensor& w, DType dtype, std::initializer_list<int64_t> dims) {
    return w.dtype == DType::kF8 ? allocate_quantized(dims, w.scales.group) : allocate(dtype, dims);
  }
  void reset() { used_ = held_; }
  // Tensors allocated before hold() survive reset(), until release().
  void hold() { held_ = used_; }
  void release() { used_ = held_ = 0; }
  size_t peak_bytes() const { return peak_; }

 private:
  static constexpr size_t kAlignment = 256;
  Buffer buffer_;
  size_t used_ = 0, held_ = 0, peak_ = 0;
};

}  // namespace lfm2
