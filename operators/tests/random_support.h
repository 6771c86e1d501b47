// What the tests over random shapes share: tensors as text, broadcasting in definitions, and workspaces.
#pragma once

#include "operators/tests/memory.h"

namespace lfm2::operators::test {

inline std::string text_of(const TensorView& view) {
  std::string text = std::string(name(view.dtype)) + " [";
  for (int axis = 0; axis < view.rank; ++axis)
    text += (axis > 0 ? ", " : "") + std::to_string(view.dim(axis)) + "/" + std::to_string(view.stride(axis));
  return text + "]";
}

// Where element i (row-major in `to`) of a broadcast tensor lies in the tensor's own row-major order.
inline std::vector<size_t> broadcast_ordinals(const TensorView& from, const TensorView& to) {
  TensorView dense = from;
  dense.set_dense_strides();
  Extents strides{}, index{};
  EXPECT_EQ(broadcast_strides(dense, to, strides), Status::kOk);
  std::vector<size_t> ordinals(static_cast<size_t>(to.numel()));
  for (size_t i = 0; i < ordinals.size(); ++i) {
    EXPECT_EQ(index_of_ordinal(to, static_cast<int64_t>(i), index), Status::kOk);
    int64_t place = 0;
    for (int axis = 0; axis < to.rank; ++axis)
      place += index[static_cast<size_t>(axis)] * strides[static_cast<size_t>(axis)];
    ordinals[i] = static_cast<size_t>(place);
  }
  return ordinals;
}

struct Workspace {
  Workspace(int device, size_t bytes) : memory(device, DType::kF32, static_cast<int64_t>(bytes / 4)) {}
  void* data() { return memory.data(); }
  Memory memory;
};

}  // namespace lfm2::operators::test
