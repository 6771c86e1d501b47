// The vector kernels for AVX-512.
#include "kernels/cpu/simd/simd_avx512_registers.h"
// The body needs the registers.
#include "kernels/cpu/simd/simd_body.h"

namespace lfm2 {
constinit const Simd kSimdAvx512{"avx512", &kMatmul,         dots, mix, exponentials, silu_multiply,
                                 add,      count_magnitudes, widen};
constinit const Simd kSimdAmx{"amx", &kMatmulAmx, dots, mix, exponentials, silu_multiply, add, count_magnitudes, widen};
}  // namespace lfm2
