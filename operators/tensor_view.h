// A strided tensor that does not own its memory: the argument of every operator. Element (i0, i1, ...) lies at data +
// (i0 strides[0] + i1 strides[1] + ...) elements. A stride may be zero (repeats an element) or negative.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/dtype.h"
#include "operators/status.h"

namespace lfm2::operators {

inline constexpr int kMaxRank = 8;
inline constexpr int kCpu = -1;  // the CPU as a device; GPUs are 0, 1, ..., as CUDA numbers them

using Extents = std::array<int64_t, kMaxRank>;

struct TensorView {
  void* data = nullptr;  // the element with index 0, 0, ...; may be null if there are no elements
  DType dtype = DType::kF32;
  int device = kCpu;
  int rank = 0;  // 0 to kMaxRank; a tensor of rank 0 has one element
  Extents dims{};
  Extents strides{};  // in elements

  TensorView() = default;
  // A dense, row-major view. With more than kMaxRank extents, check_view refuses it.
  TensorView(void* memory, DType type, std::initializer_list<int64_t> shape, int on = kCpu)
      : data(memory), dtype(type), device(on), rank(static_cast<int>(shape.size())) {
    if (rank > kMaxRank) return;
    int axis = 0;
    for (const int64_t extent : shape) dims[static_cast<size_t>(axis++)] = extent;
    set_dense_strides();
  }

  int64_t dim(int axis) const { return dims[static_cast<size_t>(axis)]; }
  int64_t stride(int axis) const { return strides[static_cast<size_t>(axis)]; }
  bool on_gpu() const { return device != kCpu; }
  int64_t numel() const {  // does not overflow once check_view has accepted the view
    int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= dim(axis);
    return count;
  }
  void set_dense_strides() {
    int64_t step = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      strides[static_cast<size_t>(axis)] = step;
      step *= dim(axis) > 0 ? dim(axis) : 1;
    }
  }
};

// Returns kInvalid unless rank, dtype and device exist, no extent is negative and the positions fit into 63 bits. Empty
// tensors are checked as if extents of 0 were 1. Data must be aligned to one element, and not null if there are
// elements.
Status check_view(const TensorView& view);
// The same for a tensor that is written: also kInvalid if two elements share a place in memory.
Status check_output(const TensorView& view);
// Whether the view is row-major without gaps. Strides of extents of 1 do not matter.
bool is_dense(const TensorView& view);
bool same_shape(const TensorView& a, const TensorView& b);
// Whether both are on one device and have one dtype.
bool same_kind(const TensorView& a, const TensorView& b);

// The strides with which `from` is read at the indices of a tensor of shape `to` (NumPy's rules: aligned at the last
// axis, an extent of 1 is repeated by stride 0); kShapeMismatch if the shapes do not match.
Status broadcast_strides(const TensorView& from, const TensorView& to, Extents& strides);
// Sets rank and dims of `out` to the broadcast shape of a and b; kShapeMismatch if there is none.
Status broadcast_shape(const TensorView& a, const TensorView& b, TensorView& out);

// Convert between the ordinal, the index and the position of an element. The ordinal counts elements in row-major
// order; the position is in elements from `data`.
Status index_of_ordinal(const TensorView& view, int64_t ordinal, Extents& index);
Status position_of_index(const TensorView& view, const Extents& index, int64_t& position);

}  // namespace lfm2::operators
