// How kernels round rows to fp8 with their own scales, as Ops::quantize defines it. A maximum is exact, so the order in
// which it is found is free, and all kernels compute the same bits for a row.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/common/device_types.cuh"

namespace lfm2 {

constexpr int kGroupLanes = kScaledGroup / kOctet;  // adjacent lanes with an octet each hold a group

__device__ inline float largest_magnitude(const Octet& x) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) largest = fmaxf(largest, fabsf(x.v[i]));  // NaNs are ignored
  return largest;
}

// The maximum over each `lanes` adjacent lanes.
template <int lanes>
__device__ inline float max_over(float x) {
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
// The scale of elements of which `largest` is the largest magnitude.
class Fp8Scale {
 public:
  __device__ explicit Fp8Scale(float largest) {
    const float scale = largest / 448;
    scale_ = scale == 0 ? 1 : scale;
    // A power of two keeps the quotients' remainders away from the ends of fp32's range. Rows with infinities have an
    // infinite scale: it makes numbers 0 and infinities NaN.
    power_ = scale_ < 0x1p-60f ? 0x1p60f : scale_ > 0x1p60f ? 0x1p-60f : 1;
    const bool finite = !isinf(scale_);
    const float divisor = finite ? scale_ * power_ : 1;
    inverse_ = finite ? __frcp_rd(divisor) : 0;
    rest_ = finite ? fmaf(-inverse_, divisor, 1) * inverse_ : 0;
  }
  __device__ float value() const { return scale_; }
  __device__ uint2 round(const Octet& x) const {
    uint2 words;
    auto* pairs = reinterpret_cast<__nv_fp8x2_storage_t*>(&words);
#pragma unroll
    for (int i = 0; i < kOctet / 2; ++i)
      pairs[i] = __nv_cvt_float2_to_fp8x2({divided(x.v[2 * i]), divided(x.v[2 * i + 1])}, __NV_SATFINITE, __NV_E4M3);
    return words;
  }

 private:
  // x / scale_, so near to the quotient that E4M3 rounds both alike: cuda_tests compares all significands of bf16.
  // The two parts of the inverse have the same sign, so that -0 keeps its own.
  __device__ float divided(float x) const {
    x *= power_;
    return fmaf(x, inverse_, x * rest_);
  }

  float scale_, power_, inverse_, rest_;
};

}  // namespace lfm2
