// rms_norm: one block a row; the order of the sum depends on the row's length only.
#include "kernels/cuda/device_types.cuh"

namespace lfm2 {

namespace {

// Every thread gets the sum over the block: lanes by a tree, then the warps in order.
__device__ float block_sum(float x) {
  __shared__ float warp_sums[32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += warp_sums[warp];
  return sum;
}

// x and out may be the same memory: a thread reads again only what it writes itself.
template <class T>
__global__ void rms_norm_kernel(const T* x, AnyArray weight, float eps, int64_t n, T* out, bool vector) {
  const T* source = x + blockIdx.x * n;
  T* target = out + blockIdx.x * n;
  float squares = 0;
  for (int64_t c = threadIdx.x * kOctet; c < n; c += blockDim.x * kOctet) {
    const Octet octet = load_octet(source + c, n - c, vector);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) squares += octet.v[i] * octet.v[i];
  }
  const float factor = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(n) + eps);
  for (int64_t c = threadIdx.x * kOctet; c < n; c += blockDim.x * kOctet) {
    Octet octet = load_octet(source + c, n - c, vector);
    const Octet scale = load_octet(weight, c, n - c, vector);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) octet.v[i] = octet.v[i] * factor * scale.v[i];
    store_octet(target + c, octet, n - c, vector);
  }
}

}  // namespace

void launch_rms_norm(cudaStream_t stream, const void* x, AnyArray weight, float eps, int64_t rows, int64_t n, void* out,
                     DType act) {
  if (rows == 0 || n == 0) return;
  const bool vector = n % kOctet == 0 && on_16_bytes(x) && on_16_bytes(weight.data) && on_16_bytes(out);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_kernel<<<static_cast<unsigned>(rows), row_threads(ceil_divide(n, kOctet)), 0, stream>>>(
        static_cast<const T*>(x), weight, eps, n, static_cast<T*>(out), vector);
  });
  check_launch("rms_norm_kernel");
}

}  // namespace lfm2
