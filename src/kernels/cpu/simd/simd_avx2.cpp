// The vector kernels for AVX2 with FMA and F16C: two registers hold the 16 lanes.
#include <immintrin.h>

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

using Vec = __m256;
constexpr size_t kWidth = 8, kParts = 2, kDotTileColumns = 2, kTileRows = 6, kFewTiles = 1;
constexpr bool kPairF16 = false;

Vec zero() { return _mm256_setzero_ps(); }
Vec broadcast(float x) { return _mm256_set1_ps(x); }
Vec load(const float* x) { return _mm256_loadu_ps(x); }
Vec load(const Bf16* x) {
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
Vec load(const F16* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }
void store(float* x, Vec value) { _mm256_storeu_ps(x, value); }
Vec fma(Vec a, Vec b, Vec sum) { return _mm256_fmadd_ps(a, b, sum); }

inline __attribute__((always_inline)) void transpose(Vec (&x)[kWidth]) {
  Vec two[kWidth], four[kWidth];
  for (size_t i = 0; i < kWidth; i += 2) {
    two[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    two[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (size_t i = 0; i < kWidth; i += 4)
    for (size_t j = 0; j < 2; ++j) {
      four[i + 2 * j] = _mm256_shuffle_ps(two[i + j], two[i + j + 2], 0x44);
      four[i + 2 * j + 1] = _mm256_shuffle_ps(two[i + j], two[i + j + 2], 0xee);
    }
  for (size_t i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x31);
  }
}

template <size_t columns>
void lane_sums(const Vec (&lanes)[columns][kParts], float* sums) {
  for (size_t c = 0; c < columns; ++c) {
    const __m256 eight = _mm256_add_ps(lanes[c][0], lanes[c][1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    sums[c] += _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
}

}  // namespace
}  // namespace lfm2

#include "kernels/cpu/simd/simd_body.h"

namespace lfm2 {
constinit const Simd kSimdAvx2{"avx2", &kMatmul, dots, mix, exponentials, silu_multiply, add, count_magnitudes, widen};
}
