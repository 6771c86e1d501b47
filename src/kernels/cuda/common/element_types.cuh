// The element types of kernels: the choice of one at run time, and conversions. For the model's kernels and for those
// of src/operators.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/dtype.h"

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
      break;
  }
  return f(float{});
}
// The same for kernels on tensor cores, which take bf16 and fp16 only.
template <class F>
auto with_16_bit_type(DType dtype, F&& f) {
  return dtype == DType::kBf16 ? f(__nv_bfloat16{}) : f(__half{});
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

}  // namespace lfm2
