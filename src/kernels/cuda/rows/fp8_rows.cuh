// How row kernels store what they round to fp8 (common/fp8_scale.cuh).
#pragma once

#include "kernels/cuda/common/fp8_scale.cuh"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

// The maximum over the block. Every thread calls it, once in a kernel.
__device__ inline float max_over_block(float x) {
  __shared__ float maxima[32];
  x = max_over<32>(x);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = x;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) x = fmaxf(x, maxima[warp]);
  return x;
}

__device__ inline void store_fp8(uint8_t* out, uint2 words, int64_t count, bool vector) {
  if (vector) {
    *reinterpret_cast<uint2*>(out) = words;
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      if (i < count) out[i] = reinterpret_cast<const uint8_t*>(&words)[i];
  }
}

// Rounds and stores the octet from column c on, whose scale is that of its group of 128, or of `largest` for the whole
// row. All lanes of a warp call it together, including those whose octet lies past the row's end.
__device__ inline void store_rounded(const RoundedRows& out, int64_t row, int64_t c, int64_t n, const Octet& x,
                                     float largest, bool vector) {
  const Fp8Scale scale(out.by_group ? max_over<kGroupLanes>(largest_magnitude(x)) : largest);
  if (c >= n) return;
  if (out.by_group ? c % kScaledGroup == 0 : c == 0)
    out.scales[(out.by_group ? c / kScaledGroup : 0) * out.stride + row] = scale.value();
  store_fp8(out.elements + row * n + c, scale.round(x), n - c, vector);
}

}  // namespace lfm2
