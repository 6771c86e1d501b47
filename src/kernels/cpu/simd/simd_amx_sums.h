// For simd_amx.cpp: takes the tiles' sums over one block of k, computes those that the tiles got wrong by plain
// multiply-adds, and adds them to the sums of the blocks before.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/simd/simd_amx_planes.h"

namespace lfm2 {
namespace {

constexpr float kLeast = 0x1p-55f;  // smaller sums over a block are computed by multiply-adds
constexpr float kMax = 0x1p100f;    // larger ones, too; sums of numbers below kLarge stay far below it

RowsView part_of(const RowsView& view, size_t first, size_t rows, size_t first_k, size_t k) {
  return {static_cast<const std::byte*>(view.data) + offset_of(view, first, first_k) * element_bytes(view.type),
          view.type,
          view.stride,
          rows,
          k,
          view.tiled};
}

// The bits of the largest magnitude in each row of `view`, which has at most 16.
void max_of_rows(const RowsView& view, unsigned (&largest)[kSide]) {
  with_type(view.type, [&](auto type, auto) {
    using T = decltype(type);
    for (size_t r = 0; r < view.rows; ++r) {
      __m512i most = _mm512_setzero_si512();
      for (size_t i = 0; i < view.k; i += kSide) {
        const T* from = static_cast<const T*>(view.data) + offset_of(view, r, i);
        const __m512i bits = _mm512_castps_si512(load(from, mask_of(view.k - i)));
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
      }
      largest[r] = _mm512_reduce_max_epu32(most);
    }
  });
}

// Which rows hold only zeros, and which hold a number that is kLarge or more when rounded to bf16; a bit for each row.
struct Kinds {
  explicit Kinds(const RowsView& view) {
    unsigned largest[kSide];
    max_of_rows(view, largest);
    for (size_t r = 0; r < view.rows; ++r) {
      if (largest[r] == 0) zeros |= 1u << r;
      if (largest[r] >= (kLarge << 16) - 0x8000u) large |= 1u << r;
    }
  }
  unsigned zeros = 0, large = 0;
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
                ? _mm512_castps_si512(load(static_cast<const T*>(view.data) + offset_of(view, r, i), mask_of(count)))
                : _mm512_setzero_si512();
      transpose(block);
      for (size_t j = 0; j < count; ++j) _mm512_store_si512(target + (i + j) * kSide, block[j]);
    }
  });
}

// Whether any of the first `columns` x `rows` sums of the tile [columns, rows] is outside kLeast to kMax.
bool doubtful(const float* tile, size_t columns, size_t rows) {
  const __m512i least = _mm512_castps_si512(_mm512_set1_ps(kLeast)), magnitude = _mm512_set1_epi32(0x7fffffff);
  // Largest distance in bits above kLeast; numbers below kLeast wrap around to a large one.
  __m512i most = _mm512_setzero_si512();
  for (size_t c = 0; c < columns; ++c) {
    const __m512i bits = _mm512_and_si512(_mm512_load_si512(tile + c * kSide), magnitude);
    most = _mm512_max_epu32(most, _mm512_sub_epi32(bits, least));
  }
  const __m512i range = _mm512_sub_epi32(_mm512_castps_si512(_mm512_set1_ps(kMax)), least);
  return _mm512_mask_cmpgt_epu32_mask(mask_of(rows), most, range) != 0;
}

// Computes those sums of the tile [columns, rows] by plain multiply-adds, in the order of k, that simd_amx.cpp says
// tiles get wrong. Sums over a row of zeros are left, because tiles compute them exactly.
__attribute__((noinline)) void make_plain(const RowsView& a, const RowsView& w, float* tile) {
  const Kinds a_kinds(a), w_kinds(w);
  const unsigned rows = mask_of(a.rows);
  __mmask16 wanted[kSide];
  unsigned any = 0;
  for (size_t c = 0; c < kSide; ++c) {
    wanted[c] = 0;
    if (c >= w.rows) continue;
    const __m512 magnitude = _mm512_abs_ps(_mm512_load_ps(tile + c * kSide));
    const unsigned least = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kLeast), _CMP_LT_OQ);
    const unsigned beyond = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kMax), _CMP_NLE_UQ);
    const bool zeros = (w_kinds.zeros >> c & 1u) != 0, large = (w_kinds.large >> c & 1u) != 0;
    const unsigned these = beyond | a_kinds.large | (large ? rows : 0) | (zeros ? 0 : least & ~a_kinds.zeros);
    wanted[c] = static_cast<__mmask16>(these & rows);
    any |= wanted[c];
  }
  if (any == 0) return;
  // This many columns at a time, so that their multiply-adds need not wait for each other.
  constexpr size_t kTogether = 8;
  alignas(64) float columns_of_a[kBlock * kSide], columns_of_w[kBlock * kSide];
  transpose_rows(a, columns_of_a);
  transpose_rows(w, columns_of_w);
  for (size_t first = 0; first < kSide; first += kTogether) {
    any = 0;
    for (size_t c = 0; c < kTogether; ++c) any |= wanted[first + c];
    if (any == 0) continue;
    __m512 sums[kTogether];
    for (size_t c = 0; c < kTogether; ++c) sums[c] = _mm512_setzero_ps();
    for (size_t i = 0; i < a.k; ++i) {
      const __m512 x = _mm512_load_ps(columns_of_a + i * kSide);
#pragma GCC unroll 8
      for (size_t c = 0; c < kTogether; ++c)
        sums[c] = _mm512_fmadd_ps(x, _mm512_set1_ps(columns_of_w[i * kSide + first + c]), sums[c]);
    }
    for (size_t c = 0; c < kTogether; ++c) _mm512_mask_store_ps(tile + (first + c) * kSide, wanted[first + c], sums[c]);
  }
}

// Adds a tile [columns, rows] to `sums`, which keep this shape until the last block turns them into [rows, columns].
inline __attribute__((always_inline)) void add_tile(const float* tile, bool first, bool last, float* sums) {
  constexpr size_t kStride = kHalves * kSide;
  __m512i x[kSide];
  for (size_t c = 0; c < kSide; ++c) {
    __m512 sum = _mm512_load_ps(tile + c * kSide);
    if (!first) sum = _mm512_add_ps(_mm512_loadu_ps(sums + c * kStride), sum);
    x[c] = _mm512_castps_si512(sum);
  }
  if (last) transpose(x);
  for (size_t r = 0; r < kSide; ++r) _mm512_storeu_ps(sums + r * kStride, _mm512_castsi512_ps(x[r]));
}

// Corrects the tiles' sums over one block of k and adds them to the sums of one register tile. a and w are views of the
// stored elements of the block; `large` says whether either holds a number of kLarge or more.
void add_block(const RowsView& a, const RowsView& w, bool large, bool first, bool last, float* sums) {
  alignas(64) float tile[kHalves * kHalves][kSide * kSide];
  const bool both = a.rows > kSide;
  _tile_stored(0, tile[0], kRowBytes);
  if (both) _tile_stored(1, tile[1], kRowBytes);
  _tile_stored(2, tile[2], kRowBytes);
  if (both) _tile_stored(3, tile[3], kRowBytes);
  for (size_t half_a = 0; half_a < (both ? kHalves : 1); ++half_a)
    for (size_t half_w = 0; half_w < kHalves; ++half_w) {
      float* part = tile[half_w * kHalves + half_a];
      const size_t row = half_a * kSide, column = half_w * kSide;
      const size_t rows = a.rows - row < kSide ? a.rows - row : kSide;
      const size_t columns = w.rows <= column ? 0 : w.rows - column < kSide ? w.rows - column : kSide;
      if (columns > 0 && (large || doubtful(part, columns, rows)))
        make_plain(part_of(a, row, rows, 0, a.k), part_of(w, column, columns, 0, w.k), part);
      add_tile(part, first, last, sums + row * kHalves * kSide + column);
    }
}

}  // namespace
}  // namespace lfm2
