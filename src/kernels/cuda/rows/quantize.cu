// quantize: rows rounded to fp8, each group of a row, or the whole row, with its own factor.
#include <cuda_fp8.h>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

namespace {

constexpr float kMaxMagnitude = 448;
constexpr int kMaxThreads = 256;

__device__ float largest_magnitude(const Octet& x);
__device__ float group_maximum(float x);
__device__ void round_octet(const Octet& x, float scale, __nv_fp8_e4m3* out, int64_t count, bool vector);

// - operands: x [rows, n] of type T, out [rows, n] fp8, scales [groups, stride]; `group`: elements with one factor,
// 128,
//   or any other number for whole rows.
// - block: one row. A maximum is exact, so its order is free.
// - thread: kEach octets of the row at a time, blockDim.x apart; sixteen threads have a group of 128. A row of no more
//   octets than the block holds at a time is read once.
// - alignment: `vector`: n in octets, x and out on 16 bytes; otherwise any.
template <class T, int kEach>
__global__ void __launch_bounds__(kMaxThreads)
    quantize_kernel(const T* x, int64_t n, int group, __nv_fp8_e4m3* out, float* scales, int64_t stride, bool vector) {
  pdl_trigger();
  __shared__ float maxima[kMaxThreads / 32];
  const int64_t row = blockIdx.x, held_at_once = static_cast<int64_t>(blockDim.x) * kEach * kOctet;
  const bool by_group = group == 16 * kOctet;
  Octet held[kEach];
  const auto place = [&](int64_t first, int i) { return first + (threadIdx.x + i * blockDim.x) * kOctet; };
  const auto load = [&](int64_t first) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t c = place(first, i);
      held[i] = {};
      if (c < n) held[i] = load_octet(x + row * n + c, n - c, vector);
    }
  };
  const auto scale_for = [](float largest) { return largest / kMaxMagnitude == 0 ? 1.0f : largest / kMaxMagnitude; };
  pdl_wait();
  float scale = 0;
  if (!by_group) {
    for (int64_t first = 0; first < n; first += held_at_once) {
      load(first);
#pragma unroll
      for (int i = 0; i < kEach; ++i) scale = fmaxf(scale, largest_magnitude(held[i]));
    }
    scale = group_maximum(scale);
    scale = fmaxf(scale, __shfl_xor_sync(kAllLanes, scale, 16));
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = scale;
    __syncthreads();
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) scale = fmaxf(scale, maxima[warp]);
    scale = scale_for(scale);
    if (threadIdx.x == 0) scales[row] = scale;
  }
  for (int64_t first = 0; first < n; first += held_at_once) {
    if (by_group || n > held_at_once) load(first);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t c = place(first, i);
      if (by_group) {
        scale = scale_for(group_maximum(largest_magnitude(held[i])));
        if (threadIdx.x % 16 == 0 && c < n) scales[c / group * stride + row] = scale;
      }
      if (c < n) round_octet(held[i], scale, out + row * n + c, n - c, vector);
    }
  }
}

__device__ float largest_magnitude(const Octet& x) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) largest = fmaxf(largest, fabsf(x.v[i]));
  return largest;
}

// Of sixteen neighbouring lanes.
__device__ float group_maximum(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

__device__ void round_octet(const Octet& x, float scale, __nv_fp8_e4m3* out, int64_t count, bool vector) {
  __nv_fp8_e4m3 rounded[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) rounded[i] = __nv_fp8_e4m3(x.v[i] / scale);
  if (vector) {
    *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(rounded);
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      if (i < count) out[i] = rounded[i];
  }
}

}  // namespace

void launch_quantize(cudaStream_t stream, const void* x, int64_t rows, int64_t n, int group, void* out, float* scales,
                     int64_t stride, DType act) {
  if (rows == 0 || n == 0) return;
  const bool vector = n % kOctet == 0 && on_16_bytes(x) && on_16_bytes(out);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    const int64_t octets = ceil_divide(n, kOctet);
    const auto launch = [&](auto kernel) {
      launch_dependent("quantize_kernel", kernel, {rows, row_threads(octets)}, stream, static_cast<const T*>(x), n,
                       group, static_cast<__nv_fp8_e4m3*>(out), scales, stride, vector);
    };
    octets <= kMaxThreads ? launch(quantize_kernel<T, 1>) : launch(quantize_kernel<T, 4>);
  });
}

}  // namespace lfm2
