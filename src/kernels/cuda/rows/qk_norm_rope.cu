// qk_norm_rope: RMSNorm of every query and key head, then the rotation, in place.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 8;                    // tokens of a block, which computes their sines once for all heads
constexpr int kPairs = kMaxHeadDim / 2 / 32;  // most pairs of a lane, in the kernel for any head dimension
constexpr int kItems = 5;                     // octet pairs that a thread has in flight
constexpr int64_t kFewTokens = 1024;          // up to this many tokens, each has a block of its own

// The rotations of a block's tokens. The angle is rounded to fp32 before its sine and cosine are taken in fp64, as for
// the CPU's table.
template <int kTokens>
struct Turns {
  float cosines[kTokens][kMaxHeadDim / 2], sines[kTokens][kMaxHeadDim / 2];
};

template <int kTokens>
__device__ void fill_turns(Turns<kTokens>& turns, const QkNormRopeArgs& args, const RopeFrequencies& frequencies,
                           int64_t first_token, int tokens) {
  const int half = args.head_dim / 2;
  for (int i = threadIdx.x; i < tokens * half; i += kThreads) {
    const int t = i / half, pair = i % half;
    const float angle = static_cast<float>(args.positions[first_token + t]) * frequencies.values[pair];
    double sine, cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    turns.cosines[t][pair] = static_cast<float>(cosine);
    turns.sines[t][pair] = static_cast<float>(sine);
  }
}

// For heads whose octet pairs are a power of two. Everything that needs only weights and positions comes before the
// wait.
// - operands: qkv [tokens, (heads + 2 kv_heads) head_dim] of type T, changed in place; q_weight, k_weight [head_dim]
//   of any type; positions [tokens] int32.
// - block: kBlockTokens tokens, which share the sines and cosines.
// - thread: pairs of octets, kThreads apart, kEach of them in flight: lane j of a head has elements 8 j … and
//   head_dim / 2 + 8 j …, and so both ends of its rotations.
// - alignment: qkv on 16 bytes, head_dim 16 times a power of two.
template <class T, int kBlockTokens, int kEach>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kernel(QkNormRopeArgs args, RopeFrequencies frequencies) {
  let_next_start();
  __shared__ Turns<kBlockTokens> turns;
  __shared__ float weights[2][kMaxHeadDim];  // the weights of queries, then those of keys
  const int half = args.head_dim / 2, lanes = half / kOctet, rotated = args.heads + args.kv_heads;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kBlockTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kBlockTokens), args.tokens - first_token));
  for (int i = threadIdx.x; i < args.head_dim; i += kThreads) {
    weights[0][i] = load_one(args.q_weight, i);
    weights[1][i] = load_one(args.k_weight, i);
  }
  fill_turns(turns, args, frequencies, first_token, tokens);
  __syncthreads();
  wait_for_previous();

  const int64_t columns = static_cast<int64_t>(rotated + args.kv_heads) * args.head_dim;
  T* const base = static_cast<T*>(args.qkv) + first_token * columns;
  const int per_token = rotated * lanes, end = tokens * per_token;
  for (int round = 0; round < end; round += kThreads * kEach) {
    Packed<T> low[kEach], high[kEach];
    T* places[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int item = round + k * kThreads + static_cast<int>(threadIdx.x), t = item / per_token,
                at = item % per_token;
      places[k] = base + t * columns + at / lanes * args.head_dim + at % lanes * kOctet;
      low[k] = high[k] = {};
      if (item < end) {
        low[k] = load_packed(places[k], kOctet, true);
        high[k] = load_packed(places[k] + half, kOctet, true);
      }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int item = round + k * kThreads + static_cast<int>(threadIdx.x), t = item / per_token,
                at = item % per_token;
      const Octet a = unpack(low[k]), b = unpack(high[k]);
      float squares = add_squares(add_squares(0, a), b);
      for (int step = lanes / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
      if (item >= end) continue;
      const float factor = rms_factor(squares, args.head_dim, args.eps);
      const int first = at % lanes * kOctet;
      const float* weight = weights[at / lanes < args.heads ? 0 : 1];
      Octet turned_low, turned_high;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        const float x = a.v[i] * factor * weight[first + i], y = b.v[i] * factor * weight[half + first + i];
        const float cosine = turns.cosines[t][first + i], sine = turns.sines[t][first + i];
        turned_low.v[i] = x * cosine - y * sine;
        turned_high.v[i] = y * cosine + x * sine;
      }
      store_packed(places[k], pack<T>(turned_low), kOctet, true);
      store_packed(places[k] + half, pack<T>(turned_high), kOctet, true);
    }
  }
}

// For any head dimension up to kMaxHeadDim.
// - operands: those of qk_norm_rope_kernel.
// - block: kTokens tokens, which share the sines and cosines; a warp takes a head at a time.
// - thread: lane l of a head has the pairs (i, i + head_dim / 2) for i = l, l + 32, ….
// - alignment: any.
template <class T>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_any_kernel(QkNormRopeArgs args, RopeFrequencies frequencies) {
  let_next_start();
  __shared__ Turns<kTokens> turns;
  const int half = args.head_dim / 2;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kTokens), args.tokens - first_token));
  fill_turns(turns, args, frequencies, first_token, tokens);
  __syncthreads();
  wait_for_previous();

  const int lane = threadIdx.x % 32, rotated = args.heads + args.kv_heads;
  const int64_t columns = static_cast<int64_t>(rotated + args.kv_heads) * args.head_dim;
  for (int item = threadIdx.x / 32; item < tokens * rotated; item += kThreads / 32) {
    const int t = item / rotated, head = item % rotated;
    T* x = static_cast<T*>(args.qkv) + (first_token + t) * columns + head * args.head_dim;
    const AnyArray weight = head < args.heads ? args.q_weight : args.k_weight;
    float first[kPairs], second[kPairs], squares = 0;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int i = lane + 32 * p;
      first[p] = i < half ? to_f32(x[i]) : 0.0f;
      second[p] = i < half ? to_f32(x[half + i]) : 0.0f;
      squares += first[p] * first[p] + second[p] * second[p];
    }
    const float factor = rms_factor(warp_sum(squares), args.head_dim, args.eps);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int i = lane + 32 * p;
      if (i >= half) break;
      const float a = first[p] * factor * load_one(weight, i), b = second[p] * factor * load_one(weight, half + i);
      x[i] = rounded<T>(a * turns.cosines[t][i] - b * turns.sines[t][i]);
      x[half + i] = rounded<T>(b * turns.cosines[t][i] + a * turns.sines[t][i]);
    }
  }
}

}  // namespace

void launch_qk_norm_rope(cudaStream_t stream, const QkNormRopeArgs& args, const RopeFrequencies& frequencies,
                         DType act) {
  if (args.tokens == 0) return;
  const int lanes = args.head_dim / (2 * kOctet);
  const bool octets =
      lanes > 0 && args.head_dim % (2 * kOctet) == 0 && (lanes & (lanes - 1)) == 0 && on_16_bytes(args.qkv);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int64_t tokens) {
      launch_dependent("qk_norm_rope_kernel", kernel,
                       {static_cast<unsigned>(ceil_divide(args.tokens, tokens)), kThreads}, stream, args, frequencies);
    };
    if (!octets) return launch(qk_norm_rope_any_kernel<T>, kTokens);
    if (args.tokens <= kFewTokens) return launch(qk_norm_rope_kernel<T, 1, 1>, 1);
    launch(qk_norm_rope_kernel<T, kTokens, kItems>, kTokens);
  });
}

}  // namespace lfm2
