// The matrix product of the vector kernels, for registers of any width. A part of simd_body.h, whose rules hold here,
// too.
#pragma once

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

constexpr size_t kTileVecs = 2, kTileColumns = kTileVecs * kWidth;
// The length of a packed row of a, chosen so that the rows of a tile do not share cache sets.
constexpr size_t kPackedStride = kMatmulBlockK + 16;

size_t packed_a_bytes(DType) { return kTileRows * kPackedStride * sizeof(float); }
size_t packed_w_bytes(DType) { return kMatmulBlockK * kTileColumns * sizeof(float); }

// The number of rows that the kernel for `rows` rows computes.
constexpr size_t kernel_rows(size_t rows) {
  return rows > 8 ? kTileRows : rows > 4 ? (kTileRows < 8 ? kTileRows : 8) : rows > 2 ? 4 : rows;
}

// Packs rows of a as fp32: [rows, kPackedStride].
void pack_a(const RowsView& a, std::byte* packed) {
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    auto* target = reinterpret_cast<float*>(packed);
    for (size_t r = 0; r < kernel_rows(a.rows); ++r, target += kPackedStride) {
      const T* row = static_cast<const T*>(a.data) + r * a.stride;
      size_t i = 0;
      if (r < a.rows) {
        for (; i + kWidth <= a.k; i += kWidth) store(target + i, load(row + i));
        if (i < a.k) store(target + i, load_some(row + i, a.k - i));
      } else {
        for (; i < a.k; i += kWidth) store(target + i, zero());
      }
    }
  });
}

// Packs rows of w as fp32, transposed: [k, kTileColumns].
void pack_w(const RowsView& w, std::byte* packed) {
  with_type(w.type, [&](auto type) {
    using T = decltype(type);
    for (size_t c = 0; c < kTileColumns; c += kWidth) {
      auto* target = reinterpret_cast<float*>(packed) + c;
      const T* first = static_cast<const T*>(w.data) + c * w.stride;
      const size_t columns = w.rows <= c ? 0 : (w.rows - c < kWidth ? w.rows - c : kWidth);
      for (size_t i = 0; i < w.k; i += kWidth) {
        const size_t count = w.k - i < kWidth ? w.k - i : kWidth;
        Vec block[kWidth];
        if (columns == kWidth && count == kWidth) {
          for (size_t j = 0; j < kWidth; ++j) block[j] = load(first + j * w.stride + i);
        } else {
          for (size_t j = 0; j < kWidth; ++j)
            block[j] = j < columns ? load_some(first + j * w.stride + i, count) : zero();
        }
        transpose(block);
        for (size_t j = 0; j < count; ++j) store(target + (i + j) * kTileColumns, block[j]);
      }
    }
  });
}

template <size_t rows>
void multiply_tile(const float* a, const float* w, size_t k, float* sums, bool first) {
  Vec tile[rows][kTileVecs];
#pragma GCC unroll 16
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = zero();
  for (size_t i = 0; i < k; ++i, w += kTileColumns) {
    Vec columns[kTileVecs];
    for (size_t v = 0; v < kTileVecs; ++v) columns[v] = load(w + v * kWidth);
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; ++r) {
      const Vec x = broadcast(a[r * kPackedStride + i]);
      for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = fma(x, columns[v], tile[r][v]);
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) {
      float* sum = sums + r * kTileColumns + v * kWidth;
      store(sum, first ? tile[r][v] : load(sum) + tile[r][v]);
    }
}

// Prefetches part number `part` of `parts` of the lines.
inline __attribute__((always_inline)) void fetch_part(const Fetch& fetch, size_t part, size_t parts) {
  for (size_t r = part; r < fetch.rows; r += parts) {
    const std::byte* row = fetch.from + r * fetch.stride;
    for (size_t byte = 0; byte < fetch.row_bytes; byte += 64) {
      if (fetch.to_write)
        __builtin_prefetch(row + byte, 1, 2);
      else
        __builtin_prefetch(row + byte, 0, 2);
    }
  }
}

void multiply(const PackedProduct& p) {
  const auto* a = reinterpret_cast<const float*>(p.a);
  const auto* w = reinterpret_cast<const float*>(p.w);
  float* sums = p.sums;
  const size_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (size_t tile = 0; tile < tiles; ++tile, a += kTileRows * kPackedStride, sums += kTileRows * kTileColumns) {
    fetch_part(p.next_w, tile, tiles);
    fetch_part(p.out, tile, tiles);
    const size_t left = p.rows - tile * kTileRows, rows = kernel_rows(left < kTileRows ? left : kTileRows);
    switch (rows) {
      case 1:
        multiply_tile<1>(a, w, p.k, sums, p.first);
        break;
      case 2:
        multiply_tile<2>(a, w, p.k, sums, p.first);
        break;
      case 4:
        multiply_tile<4>(a, w, p.k, sums, p.first);
        break;
      case 8:
        multiply_tile<(kTileRows < 8 ? kTileRows : 8)>(a, w, p.k, sums, p.first);
        break;
      case kTileRows:
        multiply_tile<kTileRows>(a, w, p.k, sums, p.first);
        break;
    }
  }
}

// ---- few rows: rows of w are read as they are stored, transposed in registers, and used at once

// A square of w: kWidth of its rows, and of each as many elements as a register has bits for.
template <class T>
struct Square {
  // bf16 comes in pairs, of which the first is in the lower half: half as many transpositions.
  static constexpr bool kPairs = __is_same(T, Bf16);
  static constexpr size_t kElements = kPairs ? 2 * kWidth : kWidth;  // of a row
  Vec columns[kWidth];

  inline __attribute__((always_inline)) void load_rows(const T* first, size_t stride) {
    for (size_t j = 0; j < kWidth; j += 4, first += 4 * stride)  // few enough addresses to stay in registers
      for (size_t i = 0; i < 4; ++i) {
        if constexpr (kPairs)
          __builtin_memcpy(&columns[j + i], first + i * stride, sizeof(Vec));
        else
          columns[j + i] = load(first + i * stride);
      }
    transpose(columns);
  }
  // Of `rows` rows, and of each the first `count` elements; zeros behind.
  inline __attribute__((always_inline)) void load_part(const T* first, size_t stride, size_t rows, size_t count) {
    T copy[kWidth * kElements] = {};  // all bits zero is the number 0 in each of the types
    for (size_t j = 0; j < rows && j < kWidth; ++j)
      for (size_t i = 0; i < count; ++i) copy[j * kElements + i] = first[j * stride + i];
    load_rows(copy, kElements);
  }
  // Element i of every row.
  inline __attribute__((always_inline)) Vec column(size_t i) const {
    if constexpr (!kPairs) return columns[i];
    const IntVec bits = (IntVec)columns[i / 2];
    return i % 2 == 0 ? (Vec)(bits << 16) : (Vec)(bits & static_cast<int>(0xffff0000u));
  }
};

// sums (+)= the products of `rows` rows of a with kTileColumns rows of w, of which p.w.rows exist, over one block of k.
template <class T, size_t rows>
void multiply_few_block(const FewProduct& p, size_t first_k, size_t k) {
  using Part = Square<T>;
  const auto* a = reinterpret_cast<const float*>(p.a + first_k / kMatmulBlockK * p.a_stride);
  const size_t stride = p.w.stride;
  const T* w = static_cast<const T*>(p.w.data) + first_k;
  // The rows of the next tile lie behind one another. They are fetched from end to end, a share in each step.
  const char* next = static_cast<const char*>(p.next_w) + first_k * kTileColumns * sizeof(T);
  Vec tile[rows][kTileVecs];
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = zero();
  for (size_t i = 0; i < k; i += Part::kElements) {
    const size_t count = k - i < Part::kElements ? k - i : Part::kElements;
    for (size_t v = 0; v < kTileVecs; ++v) {
      const size_t column = v * kWidth, left = p.w.rows < column ? 0 : p.w.rows - column;
      Part part;
      if (left >= kWidth && count == Part::kElements) {
        for (size_t byte = 0; byte < kWidth * Part::kElements * sizeof(T); byte += 64, next += 64)
          __builtin_prefetch(next, 0, 3);
        part.load_rows(w + column * stride + i, stride);
      } else {
        part.load_part(w + column * stride + i, stride, left, count);
      }
      const auto step = [&](size_t e) __attribute__((always_inline)) {
        const Vec values = part.column(e);
        for (size_t r = 0; r < rows; ++r) tile[r][v] = fma(broadcast(a[r * kPackedStride + i + e]), values, tile[r][v]);
      };
      if (count == Part::kElements) {
#pragma GCC unroll 32
        for (size_t e = 0; e < Part::kElements; ++e) step(e);
      } else {
        for (size_t e = 0; e < count; ++e) step(e);
      }
    }
  }
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) {
      float* sum = p.sums + r * kTileColumns + v * kWidth;
      store(sum, first_k == 0 ? tile[r][v] : load(sum) + tile[r][v]);
    }
}

template <size_t rows>
void multiply_few_rows(const FewProduct& p) {
  with_type(p.w.type, [&](auto type) {
    for (size_t first = 0; first < p.w.k; first += kMatmulBlockK)
      multiply_few_block<decltype(type), rows>(p, first, p.w.k - first < kMatmulBlockK ? p.w.k - first : kMatmulBlockK);
  });
}

void multiply_few(const FewProduct& p) {
  switch (kernel_rows(p.a_rows.rows)) {
    case 1:
      return multiply_few_rows<1>(p);
    case 2:
      return multiply_few_rows<2>(p);
    case 4:
      return multiply_few_rows<4>(p);
    case 8:
      return multiply_few_rows<(kTileRows < 8 ? kTileRows : 8)>(p);
    case kTileRows:
      return multiply_few_rows<kTileRows>(p);
  }
}

[[maybe_unused]] constinit const MatmulKernel kMatmul{.tile_rows = kTileRows,
                                                      .tile_columns = kTileColumns,
                                                      .block_k = kMatmulBlockK,
                                                      .a_bytes = packed_a_bytes,
                                                      .w_bytes = packed_w_bytes,
                                                      .pack_a = pack_a,
                                                      .pack_w = pack_w,
                                                      .multiply = multiply,
                                                      .multiply_few = multiply_few};

}  // namespace
}  // namespace lfm2
