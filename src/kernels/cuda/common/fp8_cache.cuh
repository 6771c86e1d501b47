// Keys and values rounded to fp8 (kernels/fp8_cache.h), on the device.
#pragma once

#include <cuda_fp8.h>

#include <cfloat>
#include <cmath>

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/fp8_cache.h"

namespace lfm2 {

template <class T>
constexpr int kMaxScaleExponent = max_scale_exponent(std::is_same_v<T, __half> ? DType::kF16 : DType::kF32);

// The larger of `largest` and the magnitude of x, if that is finite.
__device__ inline float larger_magnitude(float largest, float x) {
  return fabsf(x) <= FLT_MAX ? fmaxf(largest, fabsf(x)) : largest;
}
__device__ inline float larger_magnitude(float largest, const Octet& x) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) largest = larger_magnitude(largest, x.v[i]);
  return largest;
}

// Elements x over their scale as E4M3. Infinities and NaN become NaN.
__device__ inline float for_fp8(float x, float inverse_scale) {
  return fabsf(x) <= FLT_MAX ? x * inverse_scale : __int_as_float(0x7fffffff);
}
__device__ inline uint8_t to_fp8(float x, float inverse_scale) {
  return __nv_cvt_float_to_fp8(for_fp8(x, inverse_scale), __NV_SATFINITE, __NV_E4M3);
}
__device__ inline uint2 to_fp8(const Octet& x, float inverse_scale) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = {for_fp8(x.v[2 * i], inverse_scale), for_fp8(x.v[2 * i + 1], inverse_scale)};
    pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

// The scaled values of four E4M3.
__device__ inline float4 from_fp8(uint32_t four, float scale) {
  const float2 low = __half22float2(__nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(four), __NV_E4M3)),
               high = __half22float2(__nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(four >> 16), __NV_E4M3));
  return {low.x * scale, low.y * scale, high.x * scale, high.y * scale};
}
// Of eight, as elements of type T, which hold them exactly.
template <class T>
__device__ inline uint4 from_fp8(uint2 eight, float scale) {
  const float4 low = from_fp8(eight.x, scale), high = from_fp8(eight.y, scale);
  return {pack<T>(low.x, low.y), pack<T>(low.z, low.w), pack<T>(high.x, high.y), pack<T>(high.z, high.w)};
}

}  // namespace lfm2
