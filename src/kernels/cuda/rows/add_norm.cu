// add_norm: adds rms_norm of a row to the residual, and computes the norm after that in the same pass. The bits of both
// norms are those of rms_norm, but the first is not rounded before it is added.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/fp8_rows.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

// The largest block of add_norm_kernel.
constexpr int kThreads = kMaxPartials / 2;

template <class T, int kEach>
__device__ float row_squares(const Packed<T> (&elements)[kEach], float* trees);
template <class T>
__device__ Packed<T> added(const Packed<T>& residual, const Packed<T>& x, float factor, const Octet& weight);

// For rows of up to kMaxPartials octets.
// - operands: args.x, .residual and .normed [rows, n] of type T; weights [n] of any type; if args.rounded has elements,
//   normed is not written; without args.next_weight, there is no second norm.
// - block: one row.
// - thread: kEach octets of it, blockDim.x apart, loaded once; their weights are loaded before the wait.
// - alignment: `vector`: n in octets, everything on 16 bytes; otherwise any.
template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) add_norm_kernel(AddNormArgs args, bool vector) {
  pdl_trigger();
  __shared__ float trees[2][kMaxTrees];
  const int64_t n = args.n, row = static_cast<int64_t>(blockIdx.x) * n;
  const bool again = args.next_weight.data != nullptr;
  const auto column = [&](int i) { return int64_t{threadIdx.x + i * blockDim.x} * kOctet; };
  Octet scale[kEach], next_scale[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t c = column(i);
    if (c >= n) continue;
    scale[i] = load_octet(args.weight, c, n - c, vector);
    if (again) next_scale[i] = load_octet(args.next_weight, c, n - c, vector);
  }
  pdl_wait();
  T* const residual = static_cast<T*>(args.residual) + row;
  Packed<T> elements[kEach] = {}, sums[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t c = column(i);
    if (c >= n) continue;
    elements[i] = load_packed(static_cast<const T*>(args.x) + row + c, n - c, vector);
    sums[i] = load_packed(residual + c, n - c, vector);
  }
  const float factor = rms_factor(row_squares(elements, trees[0]), n, args.eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t c = column(i);
    if (c >= n) continue;
    sums[i] = added(sums[i], elements[i], factor, scale[i]);
    store_packed(residual + c, sums[i], n - c, vector);
  }
  if (!again) return;
  const float next_factor = rms_factor(row_squares(sums, trees[1]), n, args.next_eps);
  const bool rounds = args.rounded.elements != nullptr;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t c = column(i);
    if (c >= n) continue;
    sums[i] = pack<T>(scaled(unpack(sums[i]), next_factor, next_scale[i]));
    largest = fmaxf(largest, largest_magnitude(unpack(sums[i])));
    if (!rounds) store_packed(static_cast<T*>(args.normed) + row + c, sums[i], n - c, vector);
  }
  if (!rounds) return;
  if (!args.rounded.by_group) largest = max_over_block(largest);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    store_rounded(args.rounded, blockIdx.x, column(i), n, unpack(sums[i]), largest, vector);
}

// The sum of a row's squares, of which the block's threads have kEach octets, blockDim.x apart.
template <class T, int kEach>
__device__ float row_squares(const Packed<T> (&elements)[kEach], float* trees) {
  const int trees_apart = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float tree = warp_sum(add_squares(0, unpack(elements[i])));
    if (threadIdx.x % 32 == 0) trees[threadIdx.x / 32 + i * trees_apart] = tree;
  }
  __syncthreads();
  float squares = 0;
  for (int tree = 0; tree < trees_apart * kEach; ++tree) squares += trees[tree];
  return squares;
}

template <class T>
__device__ Packed<T> added(const Packed<T>& residual, const Packed<T>& x, float factor, const Octet& weight) {
  Octet sum = unpack(residual);
  const Octet normed = scaled(unpack(x), factor, weight);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] = __fadd_rn(sum.v[i], normed.v[i]);
  return pack<T>(sum);
}

// For longer rows, without the second norm.
// - operands: those of add_norm_kernel.
// - block: one row.
// - thread: octets of it, blockDim.x apart, read once for the sum and once for the result.
// - alignment: as for add_norm_kernel.
template <class T>
__global__ void add_norm_long_kernel(AddNormArgs args, bool vector) {
  pdl_trigger();
  const int64_t n = args.n;
  const T* x = static_cast<const T*>(args.x) + blockIdx.x * n;
  T* const residual = static_cast<T*>(args.residual) + blockIdx.x * n;
  pdl_wait();
  float squares = 0;
  for (int64_t c = threadIdx.x * kOctet; c < n; c += blockDim.x * kOctet)
    squares = add_squares(squares, load_octet(x + c, n - c, vector));
  const float factor = rms_factor(block_squares(squares), n, args.eps);
  for (int64_t c = threadIdx.x * kOctet; c < n; c += blockDim.x * kOctet)
    store_packed(residual + c,
                 added(load_packed(residual + c, n - c, vector), load_packed(x + c, n - c, vector), factor,
                       load_octet(args.weight, c, n - c, vector)),
                 n - c, vector);
}

}  // namespace

void launch_add_norm(cudaStream_t stream, const AddNormArgs& args, DType act) {
  if (args.rows == 0 || args.n == 0) return;
  const void* normed = args.rounded.elements != nullptr ? args.rounded.elements : args.normed;
  const bool vector = args.n % kOctet == 0 && on_16_bytes(args.x) && on_16_bytes(args.weight.data) &&
                      on_16_bytes(args.residual) && on_16_bytes(args.next_weight.data) && on_16_bytes(normed);
  const int64_t octets = ceil_divide(args.n, kOctet);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, unsigned threads) {
      launch_dependent("add_norm_kernel", kernel, {args.rows, threads}, stream, args, vector);
    };
    if (octets <= kThreads) return launch(add_norm_kernel<T, 1>, row_threads(octets));
    if (octets <= kMaxPartials) return launch(add_norm_kernel<T, 2>, kThreads);
    launch(add_norm_long_kernel<T>, row_threads(octets));
    if (args.next_weight.data != nullptr)
      launch_rms_norm(stream, args.residual, args.next_weight, args.next_eps, args.rows, args.n, args.normed, act,
                      args.rounded);
  });
}

}  // namespace lfm2
