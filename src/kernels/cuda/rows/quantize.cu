// quantize: rows rounded to fp8, each group of a row, or the whole row, with its own scale.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/fp8_rows.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

constexpr int kRowWarps = 4, kRowOctets = 8;  // rows of a block, and the most octets of one that a lane holds
// For rows of up to 32 kRowOctets octets.
// - operands: x [any, n] of type T, sources [rows] or null, out [rows, n]: row i is that of x[sources[i]], or of x[i].
// - block: kRowWarps rows, one for each warp.
// - thread: every 32nd octet of its warp's row, all loaded before the first is rounded.
// - alignment: `vector`: n in octets, x and out on 16 bytes; otherwise any.
template <class T>
__global__ void __launch_bounds__(kRowWarps * 32)
    quantize_kernel(const T* x, const int32_t* sources, int64_t rows, int64_t n, RoundedRows out, bool vector) {
  pdl_trigger();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const auto column = [](int i) { return static_cast<int64_t>(threadIdx.x % 32 + 32 * i) * kOctet; };
  pdl_wait();
  if (row >= rows) return;
  const T* source = x + (sources == nullptr ? row : sources[row]) * n;
  Packed<T> elements[kRowOctets];
#pragma unroll
  for (int i = 0; i < kRowOctets; ++i) {
    elements[i] = {};
    if (column(i) < n) elements[i] = load_packed(source + column(i), n - column(i), vector);
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kRowOctets && !out.by_group; ++i) {
    largest = fmaxf(largest, largest_magnitude(unpack(elements[i])));
    forget(elements[i]);
  }
  largest = max_over<32>(largest);
#pragma unroll
  for (int i = 0; i < kRowOctets; ++i)
    if (32 * i * kOctet < n) store_rounded(out, row, column(i), n, unpack(elements[i]), largest, vector);
}

constexpr int kLongThreads = 256;
// For longer rows.
// - operands: those of quantize_kernel.
// - block: one row.
// - thread: every kLongThreads-th octet, read once for the maximum and once to round it.
// - alignment: that of quantize_kernel.
template <class T>
__global__ void __launch_bounds__(kLongThreads)
    quantize_long_kernel(const T* x, const int32_t* sources, int64_t n, RoundedRows out, bool vector) {
  pdl_trigger();
  pdl_wait();
  const T* source = x + (sources == nullptr ? blockIdx.x : sources[blockIdx.x]) * n;
  const auto load = [&](int64_t c) { return c < n ? load_octet(source + c, n - c, vector) : Octet{}; };
  float largest = 0;
  for (int64_t c = threadIdx.x * kOctet; c < n && !out.by_group; c += kLongThreads * kOctet)
    largest = fmaxf(largest, largest_magnitude(load(c)));
  largest = max_over_block(largest);
  for (int64_t first = 0; first < n; first += kLongThreads * kOctet) {
    const int64_t c = first + threadIdx.x * kOctet;
    store_rounded(out, blockIdx.x, c, n, load(c), largest, vector);
  }
}

}  // namespace

void launch_quantize(cudaStream_t stream, const void* x, const int32_t* sources, int64_t rows, int64_t n,
                     const RoundedRows& out, DType act) {
  if (rows == 0 || n == 0) return;
  const bool vector = n % kOctet == 0 && on_16_bytes(x) && on_16_bytes(out.elements);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    if (n <= 32 * kRowOctets * kOctet)
      launch_dependent("quantize_kernel", quantize_kernel<T>, {ceil_divide(rows, kRowWarps), kRowWarps * 32}, stream,
                       static_cast<const T*>(x), sources, rows, n, out, vector);
    else
      launch_dependent("quantize_long_kernel", quantize_long_kernel<T>, {rows, kLongThreads}, stream,
                       static_cast<const T*>(x), sources, n, out, vector);
  });
}

}  // namespace lfm2
