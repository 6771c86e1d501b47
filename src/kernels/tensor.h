// A view of a dense row-major array on some device, passed by const reference everywhere. It owns nothing: the memory
// belongs to a Buffer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/dtype.h"
#include "base/error.h"

namespace lfm2 {

// The factors of an fp8 tensor, [rows, k] or [matrices, rows, k]: an element's value is multiplied by the factor of its
// row and column. For each matrix, `data` is [groups, stride]: a factor holds for `rows` consecutive rows and `group`
// consecutive elements of k; the last group may be shorter.
//                k: group 0     group 1     the rest
//   rows 0 ...      data[0][0]  data[1][0]  data[2][0]
//   `rows` ...      data[0][1]  data[1][1]  data[2][1]
struct Scales {
  float* data = nullptr;
  int64_t rows = 1;
  int64_t group = 0;   // 0: all of k
  int64_t stride = 0;  // from a group to the next: at least the matrix's rows / rows
  int64_t groups(int64_t k) const { return group == 0 ? 1 : (k + group - 1) / group; }
};

struct Tensor {
  static constexpr int kMaxRank = 4;

  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  bool tiled = false;  // rows lie in tiles (Backend::prepacked), which only products and embed() read
  std::array<int64_t, kMaxRank> dims{};
  Scales scales{};  // of fp8

  Tensor() = default;
  Tensor(void* memory, DType type, std::initializer_list<int64_t> shape)
      : data(static_cast<std::byte*>(memory)), dtype(type), rank(static_cast<int>(shape.size())) {
    expect(shape.size() <= kMaxRank, "Tensor: rank above 4");
    int axis = 0;
    for (int64_t extent : shape) dims[static_cast<size_t>(axis++)] = extent;
  }

  explicit operator bool() const { return rank > 0; }  // a default-constructed Tensor stands for "none"
  int64_t dim(int axis) const { return dims[static_cast<size_t>(axis)]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= dim(axis);
    return count;
  }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_bytes(dtype); }
  // The number of elements in one row, where a row is one entry of the first axis.
  int64_t row_numel() const { return rank == 0 ? 1 : (dim(0) == 0 ? 0 : numel() / dim(0)); }

  int64_t k() const { return rank == 0 ? 1 : dim(rank - 1); }  // the elements of a row of a matrix
  // The index in scales.data of the factor of this element.
  int64_t scale_of(int64_t element) const {
    const int64_t row = element / k(), matrix = rank < 3 ? 0 : row / dim(1);
    const int64_t in_matrix = row - matrix * dim(1), in_group = scales.group == 0 ? 0 : element % k() / scales.group;
    return (matrix * scales.groups(k()) + in_group) * scales.stride + in_matrix / scales.rows;
  }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  // The rows [first, first + count) of the first axis.
  Tensor rows(int64_t first, int64_t count) const {
    expect(first >= 0 && count >= 0 && first + count <= dim(0), "Tensor::rows: outside the first axis");
    Tensor view = *this;
    view.data += static_cast<size_t>(first * row_numel()) * size_bytes(dtype);
    if (scales.data != nullptr) {
      expect(rank == 3 || first % scales.rows == 0, "Tensor::rows: cuts rows that share scales");
      view.scales.data += scale_of(first * row_numel());
    }
    view.dims[0] = count;
    return view;
  }
  // The same elements under another shape.
  Tensor reshape(std::initializer_list<int64_t> shape) const {
    Tensor view(data, dtype, shape);
    expect(view.numel() == numel(), "Tensor::reshape: another number of elements");
    view.tiled = tiled;
    view.scales = scales;
    return view;
  }
  // Entry `index` of the first axis, as a tensor of one rank less.
  Tensor at(int64_t index) const {
    Tensor view = rows(index, 1);
    for (int axis = 1; axis < rank; ++axis) view.dims[static_cast<size_t>(axis - 1)] = dim(axis);
    view.dims[static_cast<size_t>(--view.rank)] = 0;  // as in any tensor of this rank: shapes are compared by `dims`
    return view;
  }
};

// Reuses the memory of x [rows, k], of 16 or 32 bits, for fp8 rows with scales of `group` elements each.
inline Tensor as_fp8_rows(const Tensor& x, int64_t group) {
  Tensor rows(x.data, DType::kF8, {x.dim(0), x.dim(1)});
  rows.scales = {.group = group, .stride = x.dim(0)};
  const size_t elements = (rows.bytes() + sizeof(float) - 1) / sizeof(float) * sizeof(float);
  expect(elements + static_cast<size_t>(rows.scales.groups(x.k()) * x.dim(0)) * sizeof(float) <= x.bytes(),
         "as_fp8_rows: no room for the scales");
  if (x.data != nullptr) rows.scales.data = reinterpret_cast<float*>(x.data + elements);
  return rows;
}

inline bool is_float(const Tensor& x) { return x.dtype != DType::kI32 && x.dtype != DType::kF8; }
// Whether matrix products accept these two operands: floats of any types, or fp8 with scales.
inline bool are_operands(const Tensor& a, const Tensor& w) {
  if (a.dtype != DType::kF8 || w.dtype != DType::kF8) return is_float(a) && is_float(w);
  return a.scales.data != nullptr && w.scales.data != nullptr && a.scales.rows == 1 && a.scales.group == w.scales.group;
}

}  // namespace lfm2
