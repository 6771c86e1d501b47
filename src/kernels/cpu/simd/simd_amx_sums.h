// For simd_amx.cpp: reads the tiles' sums over one block of k, recomputes those that the tiles got wrong by plain
// multiply-adds, and adds them to the sums of the earlier blocks.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/simd/simd_amx_planes.h"

namespace lfm2 {
namespace {

constexpr float kLeast = 0x1p-55f;  // smaller sums over a block are computed by multiply-adds
constexpr float kMax = 0x1p100f;    // larger ones, too; sums of numbers below kLarge stay far below it

// Rows of `view` if it lies in rows, or all of a tile, from element first_k on.
RowsView part_of(const RowsView& view, size_t first, size_t rows, size_t first_k, size_t k) {
  const size_t before = view.tiled ? first_k * kTileColumns : first * view.stride + first_k;
  return {static_cast<const std::byte*>(view.data) + before * element_bytes(view.type),
          view.type,
          view.stride,
          rows,
          k,
          view.tiled};
}

// At most 16 columns of w: those of `half` if w is a tile, otherwise all rows.
struct Columns {
  RowsView w;
  size_t half, count;
};

__m512i magnitude(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

// The bits of the largest magnitude in each row of `view`, which has at most 16.
__m512i max_of_rows(const RowsView& view) {
  alignas(64) unsigned largest[kSide] = {};
  with_type(view.type, [&](auto type, auto) {
    using T = decltype(type);
    for (size_t r = 0; r < view.rows; ++r) {
      __m512i most = _mm512_setzero_si512();
      for (size_t i = 0; i < view.k; i += kSide) {
        const T* from = static_cast<const T*>(view.data) + r * view.stride + i;
        most = _mm512_max_epu32(most, magnitude(load(from, mask_of(view.k - i))));
      }
      largest[r] = _mm512_reduce_max_epu32(most);
    }
  });
  return _mm512_load_si512(largest);
}
__m512i max_of_columns(const Columns& columns) {
  if (!columns.w.tiled) return max_of_rows(columns.w);
  __m512i most = _mm512_setzero_si512();
  with_type(columns.w.type, [&](auto type, auto) {
    using T = decltype(type);
    for_each_step<T>(columns.w, [&](const T* step) {
      for (size_t i = 0; i < kSide; ++i) {
        const Pair pair = load_pair(step, i, columns.half);
        most = _mm512_max_epu32(most, _mm512_max_epu32(magnitude(pair.low), magnitude(pair.high)));
      }
    });
  });
  return most;
}

// Which rows of a, or columns of w, hold only zeros, and which hold a number that is kLarge or more when rounded to
// bf16; a bit for each. `largest` are the bits of the largest magnitude in each.
struct Kinds {
  explicit Kinds(__m512i largest)
      : zeros(_mm512_testn_epi32_mask(largest, largest)),
        large(_mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32((kLarge << 16) - 0x8000))) {}
  __mmask16 zeros, large;
};

// At most 16 rows as fp32, transposed to [k, 16].
void transpose_rows(const RowsView& view, float* target) {
  with_type(view.type, [&](auto type, auto) {
    using T = decltype(type);
    for (size_t i = 0; i < view.k; i += kSide) {
      const size_t count = view.k - i < kSide ? view.k - i : kSide;
      __m512i block[kSide];
      for (size_t r = 0; r < kSide; ++r)
        block[r] =
            r < view.rows
                ? _mm512_castps_si512(load(static_cast<const T*>(view.data) + r * view.stride + i, mask_of(count)))
                : _mm512_setzero_si512();
      transpose(block);
      for (size_t j = 0; j < count; ++j) _mm512_store_si512(target + (i + j) * kSide, block[j]);
    }
  });
}
// Columns of w as fp32 [k, 16].
void load_columns(const Columns& columns, float* target) {
  if (!columns.w.tiled) return transpose_rows(columns.w, target);
  with_type(columns.w.type, [&](auto type, auto) {
    using T = decltype(type);
    for_each_step<T>(columns.w, [&](const T* step) {
      for (size_t i = 0; i < kSide; ++i, target += kSide) {
        const Pair pair = load_pair(step, i, columns.half);
        _mm512_store_ps(target, pair.low);
        _mm512_store_ps(target + kSide * kSide, pair.high);
      }
      target += kSide * kSide;
    });
  });
}

// Whether any of the first `rows` x `columns` sums of the tile [rows, columns] is outside kLeast to kMax.
bool doubtful(const float* tile, size_t rows, size_t columns) {
  const __m512i least = _mm512_castps_si512(_mm512_set1_ps(kLeast));
  // Largest distance in bits above kLeast; numbers below kLeast wrap around to a large one.
  __m512i most = _mm512_setzero_si512();
  for (size_t r = 0; r < rows; ++r)
    most = _mm512_max_epu32(most, _mm512_sub_epi32(magnitude(_mm512_load_ps(tile + r * kSide)), least));
  const __m512i range = _mm512_sub_epi32(_mm512_castps_si512(_mm512_set1_ps(kMax)), least);
  return _mm512_mask_cmpgt_epu32_mask(mask_of(columns), most, range) != 0;
}

// Computes by plain multiply-adds, in the order of k, those sums of the tile [rows, columns] that tiles get wrong
// (simd_amx.cpp). Sums over a row of zeros are left, because tiles compute them exactly.
__attribute__((noinline)) void make_plain(const RowsView& a, const Columns& columns, float* tile) {
  const Kinds a_kinds(max_of_rows(a)), w_kinds(max_of_columns(columns));
  const __mmask16 all = mask_of(columns.count);
  __mmask16 wanted[kSide] = {};
  unsigned any = 0;
  for (size_t r = 0; r < a.rows; ++r) {
    const __m512 size = _mm512_abs_ps(_mm512_load_ps(tile + r * kSide));
    const unsigned least = _mm512_cmp_ps_mask(size, _mm512_set1_ps(kLeast), _CMP_LT_OQ);
    const unsigned beyond = _mm512_cmp_ps_mask(size, _mm512_set1_ps(kMax), _CMP_NLE_UQ);
    const bool zeros = (a_kinds.zeros >> r & 1u) != 0, large = (a_kinds.large >> r & 1u) != 0;
    const unsigned these = beyond | w_kinds.large | (large ? all : 0u) | (zeros ? 0 : least & ~unsigned{w_kinds.zeros});
    wanted[r] = static_cast<__mmask16>(these & all);
    any |= wanted[r];
  }
  if (any == 0) return;
  // This many rows at a time, so that their multiply-adds need not wait for each other.
  constexpr size_t kTogether = 8;
  alignas(64) float rows_of_a[kBlock * kSide], columns_of_w[kBlock * kSide];
  transpose_rows(a, rows_of_a);
  load_columns(columns, columns_of_w);
  for (size_t first = 0; first < a.rows; first += kTogether) {
    any = 0;
    for (size_t r = 0; r < kTogether; ++r) any |= wanted[first + r];
    if (any == 0) continue;
    __m512 sums[kTogether];
    for (size_t r = 0; r < kTogether; ++r) sums[r] = _mm512_setzero_ps();
    for (size_t i = 0; i < a.k; ++i) {
      const __m512 x = _mm512_load_ps(columns_of_w + i * kSide);
#pragma GCC unroll 8
      for (size_t r = 0; r < kTogether; ++r)
        sums[r] = _mm512_fmadd_ps(x, _mm512_set1_ps(rows_of_a[i * kSide + first + r]), sums[r]);
    }
    for (size_t r = 0; r < kTogether; ++r) _mm512_mask_store_ps(tile + (first + r) * kSide, wanted[first + r], sums[r]);
  }
}

// Corrects the sums [rows, columns] over one block of k, of at most 16 rows by one half of a tile of w. Then adds them
// to the sums of the earlier blocks. The views a and w are of the block's stored elements; with `large`, either may
// hold a number of kLarge or more.
inline __attribute__((always_inline)) void add_half(const RowsView& a, const RowsView& w, size_t half, bool large,
                                                    bool first, float* tile, float* sums) {
  const size_t column = half * kSide;
  const size_t columns = w.rows <= column ? 0 : w.rows - column < kSide ? w.rows - column : kSide;
  if (columns > 0 && (large || doubtful(tile, a.rows, columns)))
    make_plain(a, {w.tiled ? w : part_of(w, column, columns, 0, w.k), half, columns}, tile);
  for (size_t r = 0; r < a.rows; ++r) {
    float* to = sums + r * kTileColumns + column;
    const __m512 sum = _mm512_load_ps(tile + r * kSide);
    _mm512_storeu_ps(to, first ? sum : _mm512_add_ps(_mm512_loadu_ps(to), sum));
  }
}

// The same for all of a register tile, whose sums are in the tile registers.
void add_block(const RowsView& a, const RowsView& w, bool large, bool first, float* sums) {
  alignas(64) float tile[kHalves * kHalves][kSide * kSide];
  const bool both = a.rows > kSide;
  _tile_stored(0, tile[0], kRowBytes);
  if (both) _tile_stored(1, tile[1], kRowBytes);
  _tile_stored(2, tile[2], kRowBytes);
  if (both) _tile_stored(3, tile[3], kRowBytes);
  for (size_t half_a = 0; half_a < (both ? kHalves : 1); ++half_a)
    for (size_t half_w = 0; half_w < kHalves; ++half_w) {
      const size_t row = half_a * kSide, rows = a.rows - row < kSide ? a.rows - row : kSide;
      add_half(part_of(a, row, rows, 0, a.k), w, half_w, large, first, tile[half_w * kHalves + half_a],
               sums + row * kTileColumns);
    }
}

}  // namespace
}  // namespace lfm2
