// The body of the vector kernels. Each simd_<instruction set>.cpp defines its registers, then includes this file.
//
// Those files are compiled with flags that other processors cannot run, so everything here has internal linkage and no
// inline function of another header is called: the linker could keep this file's copy of it for the whole program.
//
// Defined before: Vec (one register), kWidth (its floats), kParts (registers per 16 lanes), kTileColumns, load(const
// T*) (kWidth elements as fp32; T = float, Bf16, F16), store(float*, Vec), zero(), broadcast(float), fma(a, b, sum),
// lane_sums<columns>(lanes, sums): folds the 16 lanes of each column and adds them to its sum.
#pragma once

#include "kernels/cpu/simd.h"

namespace lfm2 {
namespace {

// One step of 16 elements for a tile of rows x columns.
template <size_t rows, size_t columns, class T>
inline __attribute__((always_inline)) void multiply_step(Vec (&lanes)[rows][columns][kParts], const float* a,
                                                         size_t a_stride, const T* w, size_t w_stride) {
  for (size_t p = 0; p < kParts; ++p) {
    Vec row[rows];
    for (size_t r = 0; r < rows; ++r) row[r] = load(a + r * a_stride + p * kWidth);
    for (size_t c = 0; c < columns; ++c) {
      const Vec column = load(w + c * w_stride + p * kWidth);
      for (size_t r = 0; r < rows; ++r) lanes[r][c][p] = fma(row[r], column, lanes[r][c][p]);
    }
  }
}

// A tile of sums over k <= kBlockK elements. Column c of w begins at w + c * w_column and continues, 16 elements at a
// time, every w_step: that is both a plain row and a packed panel.
template <size_t rows, size_t columns, class T>
void multiply_tile(const float* a, size_t a_stride, const T* w, size_t w_column, size_t w_step, size_t k, float* sums,
                   size_t sums_stride) {
  Vec lanes[rows][columns][kParts];
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      for (size_t p = 0; p < kParts; ++p) lanes[r][c][p] = zero();

  for (; k >= kLanes; k -= kLanes, a += kLanes, w += w_step) multiply_step(lanes, a, a_stride, w, w_column);
  if (k > 0) {  // the missing elements are zeros
    alignas(64) float a_tail[rows * kLanes] = {};
    alignas(64) T w_tail[columns * kLanes] = {};  // all bits zero is 0 in each of the types
    for (size_t i = 0; i < k; ++i) {
      for (size_t r = 0; r < rows; ++r) a_tail[r * kLanes + i] = a[r * a_stride + i];
      for (size_t c = 0; c < columns; ++c) w_tail[c * kLanes + i] = w[c * w_column + i];
    }
    multiply_step(lanes, a_tail, kLanes, w_tail, kLanes);
  }
  for (size_t r = 0; r < rows; ++r) lane_sums<columns>(lanes[r], sums + r * sums_stride);
}

template <size_t rows, class T>
void multiply_rows(const float* a, size_t a_stride, const T* w, size_t w_column, size_t w_step, size_t columns,
                   size_t k, float* sums, size_t sums_stride) {
  size_t c = 0;
  for (; c + kTileColumns <= columns; c += kTileColumns)
    multiply_tile<rows, kTileColumns>(a, a_stride, w + c * w_column, w_column, w_step, k, sums + c, sums_stride);
  for (; c < columns; ++c)
    multiply_tile<rows, 1>(a, a_stride, w + c * w_column, w_column, w_step, k, sums + c, sums_stride);
}

// All rows of a against one K block of the panel.
template <class T>
void multiply_block(const Panel& panel, size_t first_k, size_t k, const T* w, size_t w_column, size_t w_step) {
  const float* a = panel.a + first_k;
  size_t r = 0;
  for (; r + kTileRows <= panel.rows; r += kTileRows)
    multiply_rows<kTileRows>(a + r * panel.a_stride, panel.a_stride, w, w_column, w_step, panel.columns, k,
                             panel.sums + r * panel.sums_stride, panel.sums_stride);
  for (; r < panel.rows; ++r)
    multiply_rows<1>(a + r * panel.a_stride, panel.a_stride, w, w_column, w_step, panel.columns, k,
                     panel.sums + r * panel.sums_stride, panel.sums_stride);
}

// Columns as fp32, interleaved by 16 elements: [k / 16, columns, 16]. Converted once, then read many times from the L1
// cache.
template <class T>
void pack(const T* w, size_t w_stride, size_t columns, size_t k, float* packed) {
  for (size_t c = 0; c < columns; ++c) {
    const T* column = w + c * w_stride;
    float* target = packed + c * kLanes;
    for (size_t step = 0; step < k / kLanes; ++step, column += kLanes, target += columns * kLanes)
      for (size_t p = 0; p < kParts; ++p) store(target + p * kWidth, load(column + p * kWidth));
    if (k % kLanes == 0) continue;
    T tail[kLanes] = {};
    for (size_t i = 0; i < k % kLanes; ++i) tail[i] = column[i];
    for (size_t p = 0; p < kParts; ++p) store(target + p * kWidth, load(tail + p * kWidth));
  }
}

template <class T>
void multiply_typed(const Panel& panel) {
  constexpr size_t kDirectRows = 2 * kTileRows;  // up to here packing costs more than the repeated conversion
  alignas(64) float packed[kPanelColumns * kBlockK];
  for (size_t first_k = 0; first_k < panel.k; first_k += kBlockK) {
    const size_t k = panel.k - first_k < kBlockK ? panel.k - first_k : kBlockK;
    const T* w = static_cast<const T*>(panel.w) + first_k;
    if (__is_same(T, float) || panel.rows <= kDirectRows) {
      multiply_block(panel, first_k, k, w, panel.w_stride, kLanes);
    } else {
      pack(w, panel.w_stride, panel.columns, k, packed);
      multiply_block(panel, first_k, k, packed, kLanes, panel.columns * kLanes);
    }
  }
}

void multiply(const Panel& panel) {
  for (size_t r = 0; r < panel.rows; ++r)
    for (size_t c = 0; c < panel.columns; ++c) panel.sums[r * panel.sums_stride + c] = 0;
  switch (panel.w_type) {
    case DType::kF32:
      return multiply_typed<float>(panel);
    case DType::kBf16:
      return multiply_typed<Bf16>(panel);
    case DType::kF16:
      return multiply_typed<F16>(panel);
    case DType::kI32:
      return;  // refused by the operators
  }
}

// The `groups` x 16 elements of one stretch of the rows, over one block of rows; `width` of them exist.
template <size_t groups>
void mix_columns(const Mixture& mixture, size_t first_row, size_t rows, size_t first, size_t width) {
  Vec sums[groups * kParts];
  for (Vec& sum : sums) sum = zero();
  alignas(64) float copy[groups * kLanes] = {};
  for (size_t i = 0; i < rows; ++i) {
    const float* values = mixture.values + (first_row + i) * mixture.stride + first;
    if (width < groups * kLanes) {
      for (size_t j = 0; j < width; ++j) copy[j] = values[j];
      values = copy;
    }
    const Vec weight = broadcast(mixture.weights[first_row + i]);
    for (size_t p = 0; p < groups * kParts; ++p) sums[p] = fma(weight, load(values + p * kWidth), sums[p]);
  }
  for (size_t p = 0; p < groups * kParts; ++p) store(copy + p * kWidth, sums[p]);
  for (size_t j = 0; j < width; ++j) mixture.out[first + j] += copy[j];
}

void mix(const Mixture& mixture) {
  constexpr size_t kGroups = 4;  // a head of 64
  for (size_t d = 0; d < mixture.n; ++d) mixture.out[d] = 0;
  for (size_t row = 0; row < mixture.count; row += kBlockK) {
    const size_t rows = mixture.count - row < kBlockK ? mixture.count - row : kBlockK;
    size_t d = 0;
    for (; d + kGroups * kLanes <= mixture.n; d += kGroups * kLanes)
      mix_columns<kGroups>(mixture, row, rows, d, kGroups * kLanes);
    for (; d < mixture.n; d += kLanes)
      mix_columns<1>(mixture, row, rows, d, mixture.n - d < kLanes ? mixture.n - d : kLanes);
  }
}

}  // namespace
}  // namespace lfm2
