// Octets: eight consecutive elements as fp32, the unit in which row kernels load and store. Also small functions that
// every kernel file needs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/any_array.h"
#include "kernels/cuda/common/cuda_check.h"
#include "kernels/cuda/common/element_types.cuh"

namespace lfm2 {

inline int64_t ceil_divide(int64_t x, int64_t y) { return (x + y - 1) / y; }
// The number of threads of a CTA that processes a row of `items`. It depends on the row's length alone.
inline unsigned row_threads(int64_t items) {
  return static_cast<unsigned>(items >= 256 ? 256 : items <= 32 ? 32 : (items + 31) / 32 * 32);
}
inline bool on_16_bytes(const void* pointer) { return (reinterpret_cast<uintptr_t>(pointer) & 15u) == 0; }

// 2^x, where results below 2^-126 become 0.
__device__ inline float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// silu(gate) · up, with the same operations as on the CPU.
__device__ inline float swiglu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// Checks a condition that only a bug can break. If it is false, the kernel stops, and the host's next call reports a
// GPU fault.
__device__ inline void device_expect(bool condition) {
  if (!condition) __trap();
}

constexpr int kOctet = 8;
struct Octet {
  float v[kOctet];
};

// Loads eight elements from p, or the first `count` of them and zeros. `vector`: p is on 16 bytes and all eight
// elements exist.
template <class T>
__device__ inline Octet load_octet(const T* p, int64_t count, bool vector) {
  Octet octet;
  if (vector) {
    if constexpr (sizeof(T) == 4) {
      const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
      octet = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    } else {
      const uint4 bits = *reinterpret_cast<const uint4*>(p);
      const T* elements = reinterpret_cast<const T*>(&bits);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) octet.v[i] = to_f32(elements[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) octet.v[i] = i < count ? to_f32(p[i]) : 0.0f;
  }
  return octet;
}

template <class T>
__device__ inline void store_octet(T* p, const Octet& octet, int64_t count, bool vector) {
  if (vector) {
    if constexpr (sizeof(T) == 4) {
      reinterpret_cast<float4*>(p)[0] = {octet.v[0], octet.v[1], octet.v[2], octet.v[3]};
      reinterpret_cast<float4*>(p)[1] = {octet.v[4], octet.v[5], octet.v[6], octet.v[7]};
    } else {
      uint4 bits;
      T* elements = reinterpret_cast<T*>(&bits);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) elements[i] = rounded<T>(octet.v[i]);
      *reinterpret_cast<uint4*>(p) = bits;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      if (i < count) p[i] = rounded<T>(octet.v[i]);
  }
}

// Calls f with the array's data as a pointer to its element type. The whole grid takes the same branch.
template <class F>
__device__ inline auto with_elements(AnyArray array, F&& f) {
  switch (array.dtype) {
    case DType::kBf16:
      return f(static_cast<const __nv_bfloat16*>(array.data));
    case DType::kF16:
      return f(static_cast<const __half*>(array.data));
    case DType::kF32:
    case DType::kI32:
    case DType::kF8:
      break;
  }
  return f(static_cast<const float*>(array.data));
}
__device__ inline Octet load_octet(AnyArray array, int64_t first, int64_t count, bool vector) {
  return with_elements(array, [&](const auto* data) { return load_octet(data + first, count, vector); });
}
__device__ inline float load_one(AnyArray array, int64_t index) {
  return with_elements(array, [&](const auto* data) { return to_f32(data[index]); });
}

constexpr unsigned kAllLanes = 0xffffffffu;  // of a warp

// The sum of x over the warp, in an order that depends on the lanes' numbers alone. Every lane gets it.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// The inclusive prefix sum: of x over this lane and those before it.
template <class X>
__device__ inline X upto(X x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const X left = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += left;
  }
  return x;
}

}  // namespace lfm2
