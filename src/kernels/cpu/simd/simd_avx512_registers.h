// The registers of AVX-512 (F, VL, BW, DQ), as simd_body.h wants them: one holds the 16 lanes.
#pragma once

#include "kernels/cpu/simd/avx512_intrinsics.h"
#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

using Vec = __m512;
constexpr size_t kWidth = 16, kParts = 1, kDotTileColumns = 8, kTileRows = 14, kFewTiles = 2;
constexpr bool kPairF16 = true;

Vec zero() { return _mm512_setzero_ps(); }
Vec broadcast(float x) { return _mm512_set1_ps(x); }
Vec load(const float* x) {
  Vec value = _mm512_loadu_ps(x);
  // Keeps the value in its register, where g++ would read memory again for each multiply-add.
  asm("" : "+v"(value));
  return value;
}
Vec load(const Bf16* x) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
Vec load(const F16* x) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))); }
// The lower or the upper elements of pairs.
inline __attribute__((always_inline)) Vec widen(Vec pairs, bool upper, F16) {
  const __m512i bits = _mm512_castps_si512(pairs);
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(upper ? _mm512_srli_epi32(bits, 16) : bits));
}
void store(float* x, Vec value) { _mm512_storeu_ps(x, value); }
Vec fma(Vec a, Vec b, Vec sum) { return _mm512_fmadd_ps(a, b, sum); }

inline __attribute__((always_inline)) void transpose(Vec (&x)[kWidth]) {
  Vec two[kWidth], four[kWidth];
  for (size_t i = 0; i < kWidth; i += 2) {
    two[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    two[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  // four[i + j] becomes column j of each 4 x 4 block of the rows i … i + 3.
  for (size_t i = 0; i < kWidth; i += 4)
    for (size_t j = 0; j < 2; ++j) {
      four[i + 2 * j] = _mm512_shuffle_ps(two[i + j], two[i + j + 2], 0x44);
      four[i + 2 * j + 1] = _mm512_shuffle_ps(two[i + j], two[i + j + 2], 0xee);
    }
  for (size_t j = 0; j < 4; ++j) {
    const Vec a = _mm512_shuffle_f32x4(four[j], four[j + 4], 0x88),
              b = _mm512_shuffle_f32x4(four[j + 8], four[j + 12], 0x88);
    const Vec c = _mm512_shuffle_f32x4(four[j], four[j + 4], 0xdd),
              d = _mm512_shuffle_f32x4(four[j + 8], four[j + 12], 0xdd);
    x[j] = _mm512_shuffle_f32x4(a, b, 0x88);
    x[j + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
    x[j + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
    x[j + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

// Folds eight columns together: each step halves the lanes of a column and doubles the columns in a register.
inline __attribute__((always_inline)) __m256 fold(const Vec (&lanes)[8][kParts]) {
  Vec eight[4], four[2];
  for (size_t i = 0; i < 4; ++i) {  // result: [column 2i: 8 lanes, column 2i + 1: 8 lanes]
    const Vec x = lanes[2 * i][0], y = lanes[2 * i + 1][0];
    eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  for (size_t i = 0; i < 2; ++i) {  // result: [columns 4i … 4i + 3: 4 lanes each]
    const Vec x = eight[2 * i], y = eight[2 * i + 1];
    four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  }
  // `two` is [columns 0 4, 1 5, 2 6, 3 7: 2 lanes each], `one` has their sums in the even lanes.
  const Vec two = _mm512_add_ps(_mm512_shuffle_ps(four[0], four[1], 0x44), _mm512_shuffle_ps(four[0], four[1], 0xee));
  const Vec one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one));
}

float fold(Vec lanes) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <size_t columns>
void lane_sums(const Vec (&lanes)[columns][kParts], float* sums) {
  if constexpr (columns == 8)
    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), fold(lanes)));
  else
    for (size_t c = 0; c < columns; ++c) sums[c] += fold(lanes[c][0]);
}

}  // namespace
}  // namespace lfm2
