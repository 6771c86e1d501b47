// The product of few rows: rows of w are read as they are stored, transposed in registers, and used at once. A part of
// simd_matmul.h, whose rules hold here, too.
#pragma once

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

// sums (+)= the products of `rows` rows of a with kTileColumns rows of w, of which p.w.rows exist, over one block of k.
template <class Step, class T, size_t rows>
void multiply_few_block(const FewProduct& p, size_t first_k, size_t k) {
  using Part = Square<T>;
  const auto* a = reinterpret_cast<const typename Step::Element*>(p.a + first_k / kMatmulBlockK * p.a_stride);
  // The rows of the next tile are contiguous. They are prefetched from end to end, a share in each step, into the L2
  // cache, because a tile of rows is larger than L1 caches are.
  const char* next = static_cast<const char*>(p.next_w) + first_k * kTileColumns * sizeof(T);
  Vec tile[rows][kTileVecs];
  clear(tile);
  for (size_t i = 0; i < k; i += Part::kElements) {
#pragma GCC unroll 2
    for (size_t v = 0; v < kTileVecs; ++v) {
      for (size_t byte = 0; byte < kWidth * Part::kElements * sizeof(T); byte += 64, next += 64)
        __builtin_prefetch(next, 0, 2);
      Part part;
      part.load_from(p.w, v * kWidth, first_k + i);
      for_each_column<Step>(
          part, k - i, [&](size_t j, Vec column) __attribute__((always_inline)) {
            for (size_t r = 0; r < rows; ++r) {
              const Vec x = Step::spread(a[r * kPackedStride<Step> + i / Step::kElements + j]);
              tile[r][v] = Step::multiply(x, column, tile[r][v]);
            }
          });
    }
  }
  add_block(tile, first_k == 0, p.sums);
}

// Multiply-adds that are in flight at the same time, in narrow registers: two begin in a cycle, and each takes four.
constexpr size_t kUnderWay = 8;

// The number of tiles of columns that are multiplied at once, for this number of rows. In wide registers one row's two
// sums hold twice the numbers, and more tiles at once are no faster.
constexpr size_t tiles_at_once(size_t rows) {
  return kWidth > 8 || rows * kTileVecs >= kUnderWay ? 1 : kUnderWay / (rows * kTileVecs);
}
size_t few_columns(size_t rows) {
  const size_t most = tiles_at_once(kernel_rows((rows - 1) % kTileRows + 1));
  return rows <= kTileRows || most < 2 ? most : 2;  // so few that a cache keeps them for the next tile of rows
}

// The same over tiles, each of which is read from end to end: the tiles from number `tile` on.
template <class Step, class T, size_t rows, size_t tiles>
void multiply_few_tiled(const FewProduct& p, size_t tile, size_t first_k, size_t k) {
  constexpr size_t kUnit = Square<T>::kUnit, kUnits = kTileColumns * kUnit;
  // With one or two rows the processor prefetches far enough without help; with more rows, the current elements keep it
  // busy too long.
  constexpr size_t kAhead = rows <= 2 ? 0 : kWidth > 8 ? 4096 : 1024;  // bytes
  static_assert(tiles == 1 || kAhead == 0, "only the first tile's lines are asked for");
  const auto* a = reinterpret_cast<const typename Step::Element*>(p.a + first_k / kMatmulBlockK * p.a_stride);
  const size_t tile_elements = kTileColumns * p.w.stride;
  const T* w = static_cast<const T*>(p.w.data) + tile * tile_elements + first_k * kTileColumns;
  Vec sums[tiles][rows][kTileVecs];
  for (size_t t = 0; t < tiles; ++t) clear(sums[t]);
  for (size_t i = 0; i < k; i += kUnit, w += kUnits) {
    if constexpr (kAhead > 0)
      for (size_t byte = 0; byte < kUnits * sizeof(T); byte += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(w) + kAhead + byte, 0, 3);
#pragma GCC unroll 4
    for (size_t t = 0; t < tiles; ++t)
#pragma GCC unroll 2
      for (size_t j = 0; j < kUnitSteps<Step, T>; ++j) {
        Vec columns[kTileVecs];
        for (size_t v = 0; v < kTileVecs; ++v)
          columns[v] = Step::template element<T>(
              *reinterpret_cast<const VecBits*>(w + t * tile_elements + v * kWidth * kUnit), j);
#pragma GCC unroll 16
        for (size_t r = 0; r < rows; ++r) {
          const Vec x = Step::spread(a[r * kPackedStride<Step> + i / Step::kElements + j]);
          for (size_t v = 0; v < kTileVecs; ++v) sums[t][r][v] = Step::multiply(x, columns[v], sums[t][r][v]);
        }
      }
  }
  for (size_t t = 0; t < tiles; ++t) add_block(sums[t], first_k == 0, p.sums + (tile + t) * p.sums_stride);
}

// Calls f(first, count) for the blocks of k.
template <class F>
inline __attribute__((always_inline)) void for_each_block(size_t k, F&& f) {
  for (size_t first = 0; first < k; first += kMatmulBlockK)
    f(first, k - first < kMatmulBlockK ? k - first : kMatmulBlockK);
}

// Multiplies the tiles from number `tile` on: `at_once` together, the rest by halves of that.
template <class Step, class T, size_t rows, size_t at_once>
void multiply_tiles(const FewProduct& p, size_t tile) {
  for (; tile + at_once <= p.tiles; tile += at_once)
    for_each_block(p.w.k,
                   [&](size_t first, size_t k) { multiply_few_tiled<Step, T, rows, at_once>(p, tile, first, k); });
  if constexpr (at_once > 1) multiply_tiles<Step, T, rows, at_once / 2>(p, tile);
}

template <class Step, class T>
void multiply_few(const FewProduct& p) {
  with_kernel_rows(p.a_rows.rows, [&](auto rows) {
    if (p.w.tiled) return multiply_tiles<Step, T, rows(), tiles_at_once(rows())>(p, 0);
    for_each_block(p.w.k, [&](size_t first, size_t k) { multiply_few_block<Step, T, rows()>(p, first, k); });
  });
}
void multiply_few_singles(const FewProduct& p) {
  with_type(p.w.type, [&](auto type) { multiply_few<Singles, decltype(type)>(p); });
}

}  // namespace
}  // namespace lfm2
