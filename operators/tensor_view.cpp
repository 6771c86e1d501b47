// Checks views, broadcasts shapes, and converts between indices and positions.
#include "operators/tensor_view.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace lfm2::operators {

namespace {

constexpr int64_t kMaxElements = int64_t{1} << 60;  // so that positions in bytes stay within 63 bits

size_t at(int axis) { return static_cast<size_t>(axis); }

}  // namespace

Status check_view(const TensorView& view) {
  if (view.rank < 0 || view.rank > kMaxRank || view.device < kCpu) return Status::kInvalid;
  if (view.dtype != DType::kF32 && view.dtype != DType::kBf16 && view.dtype != DType::kF16) return Status::kInvalid;
  bool empty = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.dim(axis) < 0) return Status::kInvalid;
    empty = empty || view.dim(axis) == 0;
  }
  // Extents of 0 count as 1, so that no partial product overflows in empty tensors, either.
  int64_t count = 1, reach = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    const int64_t extent = std::max<int64_t>(1, view.dim(axis)), stride = view.stride(axis);
    if (extent > kMaxElements / count) return Status::kInvalid;
    count *= extent;
    if (extent == 1) continue;
    if (stride < -kMaxElements || stride > kMaxElements) return Status::kInvalid;
    const int64_t step = std::abs(stride);
    if (step > kMaxElements / (extent - 1)) return Status::kInvalid;
    reach += step * (extent - 1);
    if (reach > kMaxElements) return Status::kInvalid;
  }
  if (empty) return Status::kOk;
  if (view.data == nullptr) return Status::kInvalid;
  return reinterpret_cast<uintptr_t>(view.data) % size_bytes(view.dtype) == 0 ? Status::kOk : Status::kInvalid;
}

Status check_output(const TensorView& view) {
  STATUS_CHECK(check_view(view));
  if (view.numel() == 0) return Status::kOk;
  // When the axes are sorted by stride, each step must go beyond the elements of all smaller ones. (Views that
  // interleave without overlap, such as strides 2 and 3 over extents 2 and 2, are refused, too.)
  std::array<std::pair<int64_t, int64_t>, kMaxRank> axes;  // stride, extent
  int count = 0;
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.dim(axis) > 1) axes[at(count++)] = {std::abs(view.stride(axis)), view.dim(axis)};
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && axes[at(j)].first < axes[at(j - 1)].first; --j) std::swap(axes[at(j)], axes[at(j - 1)]);
  int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (axes[at(i)].first <= reach) return Status::kInvalid;
    reach += axes[at(i)].first * (axes[at(i)].second - 1);
  }
  return Status::kOk;
}

bool is_dense(const TensorView& view) {
  if (view.numel() == 0) return true;
  int64_t step = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (view.dim(axis) > 1 && view.stride(axis) != step) return false;
    step *= view.dim(axis);
  }
  return true;
}

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.rank == b.rank && std::equal(a.dims.begin(), a.dims.begin() + a.rank, b.dims.begin());
}

bool same_kind(const TensorView& a, const TensorView& b) { return a.dtype == b.dtype && a.device == b.device; }

Status broadcast_strides(const TensorView& from, const TensorView& to, Extents& strides) {
  const int missing = to.rank - from.rank;
  if (missing < 0) return Status::kShapeMismatch;
  strides.fill(0);
  for (int axis = 0; axis < from.rank; ++axis) {
    if (from.dim(axis) == 1) continue;
    if (from.dim(axis) != to.dim(axis + missing)) return Status::kShapeMismatch;
    strides[at(axis + missing)] = from.stride(axis);
  }
  return Status::kOk;
}

Status broadcast_shape(const TensorView& a, const TensorView& b, TensorView& out) {
  out.rank = std::max(a.rank, b.rank);
  for (int axis = 0; axis < out.rank; ++axis) {
    const int in_a = axis - (out.rank - a.rank), in_b = axis - (out.rank - b.rank);
    const int64_t x = in_a < 0 ? 1 : a.dim(in_a), y = in_b < 0 ? 1 : b.dim(in_b);
    if (x != y && x != 1 && y != 1) return Status::kShapeMismatch;
    out.dims[at(axis)] = x == 1 ? y : x;
  }
  return Status::kOk;
}

Status index_of_ordinal(const TensorView& view, int64_t ordinal, Extents& index) {
  if (view.rank < 0 || view.rank > kMaxRank || ordinal < 0 || ordinal >= view.numel()) return Status::kInvalid;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    index[at(axis)] = ordinal % view.dim(axis);
    ordinal /= view.dim(axis);
  }
  return Status::kOk;
}

Status position_of_index(const TensorView& view, const Extents& index, int64_t& position) {
  if (view.rank < 0 || view.rank > kMaxRank) return Status::kInvalid;
  position = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (index[at(axis)] < 0 || index[at(axis)] >= view.dim(axis)) return Status::kInvalid;
    position += index[at(axis)] * view.stride(axis);
  }
  return Status::kOk;
}

}  // namespace lfm2::operators
