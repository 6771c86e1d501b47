// The element types of kernels: the choice of a type at run time, and conversions. For the model's kernels and those of
// operators/.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "base/dtype.h"

namespace lfm2 {

// Calls f(T{}), where T is the kernels' type for a float dtype.
template <class F>
auto with_device_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBf16:
      return f(__nv_bfloat16{});
    case DType::kF16:
      return f(__half{});
    case DType::kF32:
    case DType::kI32:
    case DType::kF8:
      break;
  }
  return f(float{});
}
// The same for kernels on tensor cores, which support only bf16 and fp16.
template <class F>
auto with_16_bit_type(DType dtype, F&& f) {
  return dtype == DType::kBf16 ? f(__nv_bfloat16{}) : f(__half{});
}

// Calls f(std::true_type{}) or f(std::false_type{}).
template <class F>
auto with_constant(bool value, F&& f) {
  return value ? f(std::true_type{}) : f(std::false_type{});
}

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_f32(__half x) { return __half2float(x); }

template <class T>
__device__ T rounded(float x);  // rounds to nearest, ties to even
template <>
__device__ inline float rounded<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half rounded<__half>(float x) {
  return __float2half_rn(x);
}

// Two values rounded to type T, and back.
template <class T>
__device__ uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <class T>
__device__ float2 unpack(uint32_t pair);
template <>
__device__ inline float2 unpack<__nv_bfloat16>(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
template <>
__device__ inline float2 unpack<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace lfm2
