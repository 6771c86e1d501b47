// rms_norm: one block for each row. The order of the sum depends on the row's length only (row_types.cuh).
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/fp8_rows.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

// The largest block of rms_norm_kernel.
constexpr int kThreads = kMaxPartials / 2;
// For rows of up to kMaxPartials octets.
// - operands: x, out [rows, n] of type T, which may be the same memory; weight [n] of any type; if `rounded` has
//   elements, out is not written.
// - block: one row.
// - thread: kEach octets of it, blockDim.x apart, loaded once; their weights are loaded before the wait.
// - alignment: `vector`: n in octets, everything on 16 bytes; otherwise any.
template <class T, int kEach>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const T* x, AnyArray weight, float eps, int64_t n, T* out, RoundedRows rounded, bool vector) {
  pdl_trigger();
  __shared__ float trees[kMaxTrees];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * n;
  const int trees_apart = static_cast<int>(blockDim.x) / 32;
  Octet scale[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t c = (threadIdx.x + i * blockDim.x) * kOctet;
    if (c < n) scale[i] = load_octet(weight, c, n - c, vector);
  }
  pdl_wait();
  Packed<T> elements[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t c = (threadIdx.x + i * blockDim.x) * kOctet;
    elements[i] = {};
    if (c < n) elements[i] = load_packed(x + row + c, n - c, vector);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float tree = warp_sum(add_squares(0, unpack(elements[i])));
    if (threadIdx.x % 32 == 0) trees[threadIdx.x / 32 + i * trees_apart] = tree;
  }
  __syncthreads();
  float squares = 0;
  for (int tree = 0; tree < trees_apart * kEach; ++tree) squares += trees[tree];
  const float factor = rms_factor(squares, n, eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t c = (threadIdx.x + i * blockDim.x) * kOctet;
    if (c >= n) continue;
    elements[i] = pack<T>(scaled(unpack(elements[i]), factor, scale[i]));
    if (rounded.elements == nullptr) store_packed(out + row + c, elements[i], n - c, vector);
  }
  if (rounded.elements == nullptr) return;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, largest_magnitude(unpack(elements[i])));
  if (!rounded.by_group) largest = max_over_block(largest);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    store_rounded(rounded, blockIdx.x, (threadIdx.x + i * blockDim.x) * kOctet, n, unpack(elements[i]), largest,
                  vector);
}

// For longer rows.
// - operands: those of rms_norm_kernel; if x and out are the same memory, a thread reads again only what it writes
//   itself.
// - block: one row.
// - thread: octets of it, blockDim.x apart, read once for the sum, once for a scale, and once for the result.
// - alignment: as for rms_norm_kernel.
template <class T>
__global__ void rms_norm_long_kernel(const T* x, AnyArray weight, float eps, int64_t n, T* out, RoundedRows rounded,
                                     bool vector) {
  pdl_trigger();
  const T* source = x + blockIdx.x * n;
  T* target = out + blockIdx.x * n;
  pdl_wait();
  float squares = 0;
  for (int64_t c = threadIdx.x * kOctet; c < n; c += blockDim.x * kOctet)
    squares = add_squares(squares, load_octet(source + c, n - c, vector));
  const float factor = rms_factor(block_squares(squares), n, eps);
  const auto normed = [&](int64_t c) {
    if (c >= n) return Packed<T>{};
    const Octet octet = load_octet(source + c, n - c, vector), scale = load_octet(weight, c, n - c, vector);
    return pack<T>(scaled(octet, factor, scale));
  };
  if (rounded.elements == nullptr) {
    for (int64_t c = threadIdx.x * kOctet; c < n; c += blockDim.x * kOctet)
      store_packed(target + c, normed(c), n - c, vector);
    return;
  }
  float largest = 0;
  for (int64_t c = threadIdx.x * kOctet; c < n; c += blockDim.x * kOctet)
    largest = fmaxf(largest, largest_magnitude(unpack(normed(c))));
  if (!rounded.by_group) largest = max_over_block(largest);
  for (int64_t first = 0; first < n; first += blockDim.x * kOctet) {
    const int64_t c = first + threadIdx.x * kOctet;
    store_rounded(rounded, blockIdx.x, c, n, unpack(normed(c)), largest, vector);
  }
}

}  // namespace

void launch_rms_norm(cudaStream_t stream, const void* x, AnyArray weight, float eps, int64_t rows, int64_t n, void* out,
                     DType act, const RoundedRows& rounded) {
  if (rows == 0 || n == 0) return;
  const bool vector = n % kOctet == 0 && on_16_bytes(x) && on_16_bytes(weight.data) &&
                      on_16_bytes(rounded.elements != nullptr ? rounded.elements : out);
  const int64_t octets = ceil_divide(n, kOctet);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, unsigned threads) {
      launch_dependent("rms_norm_kernel", kernel, {rows, threads}, stream, static_cast<const T*>(x), weight, eps, n,
                       static_cast<T*>(out), rounded, vector);
    };
    if (octets <= kThreads)
      launch(rms_norm_kernel<T, 1>, row_threads(octets));
    else if (octets <= kMaxPartials)
      launch(rms_norm_kernel<T, 2>, kThreads);
    else
      launch(rms_norm_long_kernel<T>, row_threads(octets));
  });
}

}  // namespace lfm2
