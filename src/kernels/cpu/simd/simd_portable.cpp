// The vector kernels for any processor, in the compiler's own vectors of four floats (SSE2, NEON). If the target has no
// fused multiply-add (x86-64 without flags), products are rounded before they are added, and the bits differ from those
// of the other tables.
#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

using Vec = float __attribute__((vector_size(16)));
constexpr size_t kWidth = 4, kParts = 4, kDotTileColumns = 2, kTileRows = 6, kFewTiles = 1;
constexpr bool kPairF16 = false;

Vec broadcast(float x) { return Vec{x, x, x, x}; }
Vec zero() { return Vec{}; }
template <class T>
Vec load(const T* x) {
  return Vec{to_float(x[0]), to_float(x[1]), to_float(x[2]), to_float(x[3])};
}
void store(float* x, Vec value) {
  for (size_t i = 0; i < kWidth; ++i) x[i] = value[i];
}
Vec fma(Vec a, Vec b, Vec sum) {
#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
  for (size_t i = 0; i < kWidth; ++i) sum[i] = __builtin_fmaf(a[i], b[i], sum[i]);
  return sum;
#else
  return a * b + sum;
#endif
}

void transpose(Vec (&x)[kWidth]) {
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t j = 0; j < i; ++j) {
      const float upper = x[j][i];
      x[j][i] = x[i][j];
      x[i][j] = upper;
    }
}

template <size_t columns>
void lane_sums(const Vec (&lanes)[columns][kParts], float* sums) {
  for (size_t c = 0; c < columns; ++c) {
    const Vec four = (lanes[c][0] + lanes[c][2]) + (lanes[c][1] + lanes[c][3]);
    sums[c] += (four[0] + four[2]) + (four[1] + four[3]);
  }
}

}  // namespace
}  // namespace lfm2

#include "kernels/cpu/simd/simd_body.h"

namespace lfm2 {
constinit const Simd kSimdPortable{"portable", &kMatmul,         dots, mix, exponentials, silu_multiply,
                                   add,        count_magnitudes, widen};
}
