// The matrix product of the vector kernels, for registers of any width. A part of simd_body.h, whose rules hold here,
// too.
//
// The template parameter Step defines how many elements of k a multiplication processes, and how. It has Element
// (packed elements of a row), kElements (their number), spread(Element) (the register with the Element in every lane),
// multiply(a, w, sum), and element<T>(units, i) (of units of weights: Element i of every row).
#pragma once

#include <type_traits>

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

constexpr size_t kTileVecs = 2, kTileColumns = kTileVecs * kWidth;

// The number of rows that the kernel for `rows` rows computes.
constexpr size_t kernel_rows(size_t rows) {
  return rows > 8 ? kTileRows : rows > 4 ? (kTileRows < 8 ? kTileRows : 8) : rows > 2 ? 4 : rows;
}

// Calls f with kernel_rows(rows) as a constant; rows is 1 … kTileRows.
template <class F>
void with_kernel_rows(size_t rows, F&& f) {
  switch (kernel_rows(rows)) {
    case 1:
      return f(std::integral_constant<size_t, 1>{});
    case 2:
      return f(std::integral_constant<size_t, 2>{});
    case 4:
      return f(std::integral_constant<size_t, 4>{});
    case kTileRows:
      return f(std::integral_constant<size_t, kTileRows>{});
    default:
      return f(std::integral_constant<size_t, kernel_rows(8)>{});
  }
}

// The length in Elements of a packed row of a, chosen so that the rows of a tile do not share cache sets.
template <class Step>
constexpr size_t kPackedStride = kMatmulBlockK / Step::kElements + 16;

// The number of Elements that hold `count` elements of k.
template <class Step>
constexpr size_t steps_of(size_t count) {
  return (count + Step::kElements - 1) / Step::kElements;
}

template <class Step>
constexpr size_t packed_a_bytes() {
  return kTileRows * kPackedStride<Step> * sizeof(typename Step::Element);
}
template <class Step>
constexpr size_t packed_w_bytes() {
  return steps_of<Step>(kMatmulBlockK) * kTileColumns * sizeof(float);
}

// A register's bits in memory of any type. (g++ copies 32 bytes by __builtin_memcpy in halves, which the processor
// cannot forward to a load of the whole.)
using VecBits = float __attribute__((vector_size(sizeof(Vec)), aligned(2), may_alias));

// A square of w: kWidth of its rows, each with the elements that fill a register.
template <class T>
struct Square {
  // bf16 comes in pairs, the first in the lower half, which halves the transpositions. fp16 does if pairs are widened
  // fast enough.
  static constexpr bool kPairs = __is_same(T, Bf16) || (__is_same(T, F16) && kPairF16);
  static constexpr size_t kElements = kPairs ? 2 * kWidth : kWidth;  // of a row
  static constexpr size_t kUnit = kPairs ? 2 : 1;                    // elements in a lane
  Vec columns[kWidth];

  inline __attribute__((always_inline)) void load_rows(const T* first, size_t stride) {
    for (size_t j = 0; j < kWidth; j += 4, first += 4 * stride)  // few enough addresses to stay in registers
      for (size_t i = 0; i < 4; ++i) {
        if constexpr (kPairs)
          columns[j + i] = *reinterpret_cast<const VecBits*>(first + i * stride);
        else
          columns[j + i] = load(first + i * stride);
      }
    transpose(columns);
  }
  // The same from a tile (RowsView::tiled), whose memory has this layout.
  inline __attribute__((always_inline)) void load_tiled(const RowsView& w, size_t row, size_t i) {
    const T* first = static_cast<const T*>(w.data) + i * kTileColumns + row * kUnit;
    for (size_t j = 0; j < kWidth; ++j)
      columns[j] = *reinterpret_cast<const VecBits*>(first + j * kTileColumns * kUnit);
  }
  inline __attribute__((always_inline)) void store_tiled(size_t row, size_t i, T* tile) const {
    T* first = tile + i * kTileColumns + row * kUnit;
    for (size_t j = 0; j < kWidth; ++j) *reinterpret_cast<VecBits*>(first + j * kTileColumns * kUnit) = columns[j];
  }
  // The rows of w from `row` on, and of each the elements from `i` on, followed by zeros.
  inline __attribute__((always_inline)) void load_from(const RowsView& w, size_t row, size_t i) {
    if (w.tiled) return load_tiled(w, row, i);
    const T* first = static_cast<const T*>(w.data) + row * w.stride + i;
    size_t stride = w.stride;
    T copy[kWidth * kElements];
    if (w.rows < row + kWidth || w.k < i + kElements) {
      copy_part(w, row, i, copy);
      first = copy;
      stride = kElements;
    }
    load_rows(first, stride);
  }
  // Element i of the unit in every lane, in fp32.
  static inline __attribute__((always_inline)) Vec element(Vec units, size_t i) {
    if constexpr (!kPairs) return units;
    if constexpr (kPairs && __is_same(T, F16)) return widen(units, i != 0, T{});
    const IntVec bits = (IntVec)units;
    return i == 0 ? (Vec)(bits << 16) : (Vec)(bits & static_cast<int>(0xffff0000u));
  }

 private:
  // Not inlined, because it is rare, and would take registers from the kernels.
  __attribute__((noinline)) static void copy_part(const RowsView& w, size_t row, size_t i, T* copy) {
    for (size_t r = row; r < row + kWidth; ++r)
      for (size_t e = i; e < i + kElements; ++e)  // all bits zero is the number 0 in each of the types
        *copy++ = r < w.rows && e < w.k ? static_cast<const T*>(w.data)[r * w.stride + e] : T{};
  }
};

// One element of k at a time, in fp32.
struct Singles {
  using Element = float;
  static constexpr size_t kElements = 1;
  static Vec spread(float a) { return broadcast(a); }
  static Vec multiply(Vec a, Vec w, Vec sum) { return fma(a, w, sum); }
  template <class T>
  static inline __attribute__((always_inline)) Vec element(Vec units, size_t i) {
    return Square<T>::element(units, i);
  }
};

// The number of Elements in a unit of weights.
template <class Step, class T>
constexpr size_t kUnitSteps = Square<T>::kUnit / Step::kElements;

// Calls f(i, column) for the Elements that hold the first `count` elements of the rows of a square, or all of them.
template <class Step, class T, class F>
inline __attribute__((always_inline)) void for_each_column(const Square<T>& part, size_t count, F&& f) {
  constexpr size_t kAll = Square<T>::kElements / Step::kElements, kInUnit = kUnitSteps<Step, T>;
  const size_t steps = steps_of<Step>(count);
  if (steps >= kAll) {
#pragma GCC unroll 32
    for (size_t i = 0; i < kAll; ++i) f(i, Step::template element<T>(part.columns[i / kInUnit], i % kInUnit));
  } else {
    for (size_t i = 0; i < steps; ++i) f(i, Step::template element<T>(part.columns[i / kInUnit], i % kInUnit));
  }
}

// Packs rows of a as fp32: [rows, kPackedStride<Singles>].
void pack_a_singles(const RowsView& a, std::byte* packed) {
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    auto* target = reinterpret_cast<float*>(packed);
    for (size_t r = 0; r < kernel_rows(a.rows); ++r, target += kPackedStride<Singles>) {
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

// Packs rows of w, transposed: [steps of k, kTileColumns].
template <class Step, class T>
void pack_w(const RowsView& w, std::byte* packed) {
  using Part = Square<T>;
  for (size_t c = 0; c < kTileColumns; c += kWidth) {
    auto* target = reinterpret_cast<float*>(packed) + c;
    for (size_t i = 0; i < w.k; i += Part::kElements) {
      Part part;
      part.load_from(w, c, i);
      for_each_column<Step>(part, w.k - i, [&](size_t, Vec column) {
        store(target, column);
        target += kTileColumns;
      });
    }
  }
}
void pack_w_singles(const RowsView& w, std::byte* packed) {
  with_type(w.type, [&](auto type) { pack_w<Singles, decltype(type)>(w, packed); });
}

// Zeros for the sums of a register tile.
template <size_t rows>
inline __attribute__((always_inline)) void clear(Vec (&tile)[rows][kTileVecs]) {
#pragma GCC unroll 16
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = zero();
}
// Adds the sums of one block of k to those of the blocks before it: sums is [rows, kTileColumns].
template <size_t rows>
inline __attribute__((always_inline)) void add_block(const Vec (&tile)[rows][kTileVecs], bool first, float* sums) {
#pragma GCC unroll 16
  for (size_t r = 0; r < rows; ++r)
    for (size_t v = 0; v < kTileVecs; ++v) {
      float* sum = sums + r * kTileColumns + v * kWidth;
      store(sum, first ? tile[r][v] : load(sum) + tile[r][v]);
    }
}

template <class Step, size_t rows>
void multiply_tile(const typename Step::Element* a, const float* w, size_t steps, float* sums, bool first) {
  Vec tile[rows][kTileVecs];
  clear(tile);
  for (size_t i = 0; i < steps; ++i, w += kTileColumns) {
    Vec columns[kTileVecs];
    for (size_t v = 0; v < kTileVecs; ++v) columns[v] = load(w + v * kWidth);
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; ++r) {
      const Vec x = Step::spread(a[r * kPackedStride<Step> + i]);
      for (size_t v = 0; v < kTileVecs; ++v) tile[r][v] = Step::multiply(x, columns[v], tile[r][v]);
    }
  }
  add_block(tile, first, sums);
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

template <class Step>
void multiply(const PackedProduct& p) {
  const auto* a = reinterpret_cast<const typename Step::Element*>(p.a);
  const auto* w = reinterpret_cast<const float*>(p.w);
  float* sums = p.sums;
  const size_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (size_t tile = 0; tile < tiles; ++tile, a += kTileRows * kPackedStride<Step>, sums += kTileRows * kTileColumns) {
    fetch_part(p.next_w, tile, tiles);
    fetch_part(p.out, tile, tiles);
    const size_t left = p.rows - tile * kTileRows;
    with_kernel_rows(left < kTileRows ? left : kTileRows,
                     [&](auto rows) { multiply_tile<Step, rows()>(a, w, steps_of<Step>(p.k), sums, p.first); });
  }
}

}  // namespace
}  // namespace lfm2

#include "kernels/cpu/simd/simd_few_rows.h"

namespace lfm2 {
namespace {

// Tiles are [k / unit, kTileColumns, unit], in units of 32 bits. fp16 without pairs would have units of 16 bits: it
// stays in rows.
bool has_tiles(DType w) { return w == DType::kF32 || w == DType::kBf16 || (w == DType::kF16 && kPairF16); }
void tile_w(const RowsView& rows, std::byte* tile) {
  with_type(rows.type, [&](auto type) {
    using T = decltype(type);
    for (size_t c = 0; c < kTileColumns; c += kWidth)
      for (size_t i = 0; i < rows.k; i += Square<T>::kElements) {
        Square<T> part;
        part.load_from(rows, c, i);
        part.store_tiled(c, i, reinterpret_cast<T*>(tile));
      }
  });
}
void row_of_tile(const RowsView& tile, size_t row, std::byte* target) {
  with_type(tile.type, [&](auto type) {
    using T = decltype(type);
    constexpr size_t kUnit = Square<T>::kUnit;
    for (size_t i = 0; i < tile.k; i += kUnit)
      __builtin_memcpy(reinterpret_cast<T*>(target) + i,
                       static_cast<const T*>(tile.data) + i * kTileColumns + row * kUnit, kUnit * sizeof(T));
  });
}

// Tiles need no transposition, and that is what packing saves for each further tile of rows. Narrow tiles have fewer
// rows.
constexpr size_t kFewTilesTiled = kFewTiles + (kWidth > 8 ? 1 : 2);

[[maybe_unused]] constinit const MatmulKernel kMatmul{
    .tile_rows = kTileRows,
    .tile_columns = kTileColumns,
    .block_k = kMatmulBlockK,
    .a_bytes = [](DType, DType) { return packed_a_bytes<Singles>(); },
    .w_bytes = [](DType, DType) { return packed_w_bytes<Singles>(); },
    .pack_a = [](const RowsView& a, DType, std::byte* packed) { pack_a_singles(a, packed); },
    .pack_w = [](const RowsView& w, DType, std::byte* packed) { pack_w_singles(w, packed); },
    .multiply = multiply<Singles>,
    .multiply_few = multiply_few_singles,
    .few_tiles = kFewTiles,
    .few_tiles_tiled = kFewTilesTiled,
    .few_columns = few_columns,
    .has_tiles = has_tiles,
    .tile_w = tile_w,
    .row_of_tile = row_of_tile,
    .tile_is_packed = [](DType, DType w) { return w == DType::kF32; }};

}  // namespace
}  // namespace lfm2
