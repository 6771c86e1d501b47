// qk_norm_rope: RMSNorm of every query and key head, then the rotation, in place; and, if asked for, the rounding of
// keys and values to fp8.
#include "kernels/cuda/rows/qk_norm_rope.cuh"

namespace lfm2 {

namespace {

using namespace qk_norm_rope;

constexpr int kPairs = kMaxHeadDim / 2 / 32;  // the most pairs of a lane, in the kernel for any head dimension

// For heads whose octet pairs are a power of two.
// - operands: qkv [tokens, columns] of type T, changed in place; q_weight, k_weight [head_dim]
//   of any type; positions [tokens] int32.
// - block: kBlockTokens tokens, which share the sines and cosines.
// - thread: pairs of octets, kThreads apart, kEach of them in flight: lane j of a head has elements 8 j … and
//   head_dim / 2 + 8 j …, and so both ends of its rotations.
// - alignment: qkv on 16 bytes, head_dim 16 times a power of two.
template <class T, int kBlockTokens, int kEach, bool rounds>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kernel(QkNormRopeArgs args, RopeFrequencies frequencies) {
  if constexpr (rounds)
    turn_heads<T, kBlockTokens, kEach>(args, frequencies, Rounder<T>{args});
  else
    turn_heads<T, kBlockTokens, kEach>(args, frequencies, NoKeeper{});
}

// For any head dimension up to kMaxHeadDim.
// - operands: those of qk_norm_rope_kernel.
// - block: kTokens tokens, which share the sines and cosines; a warp computes one head at a time.
// - thread: lane l of a head has the pairs (i, i + head_dim / 2) for i = l, l + 32, ….
// - alignment: any.
template <class T>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_any_kernel(QkNormRopeArgs args, RopeFrequencies frequencies) {
  pdl_trigger();
  __shared__ Turns<kTokens> turns;
  const int half = args.head_dim / 2;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kTokens), args.tokens - first_token));
  fill_turns(turns, args, frequencies, first_token, tokens);
  __syncthreads();
  pdl_wait();

  const int lane = threadIdx.x % 32, rotated = args.heads + args.kv_heads;
  for (int item = threadIdx.x / 32; item < tokens * rotated; item += kThreads / 32) {
    const int t = item / rotated, head = item % rotated;
    T* x = static_cast<T*>(args.qkv) + (first_token + t) * args.columns + head * args.head_dim;
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

bool launch_qk_norm_rope(cudaStream_t stream, const QkNormRopeArgs& args, const RopeFrequencies& frequencies, DType act,
                         bool rounds) {
  if (args.tokens == 0) return true;
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int64_t tokens) {
      launch_dependent("qk_norm_rope_kernel", kernel, {ceil_divide(args.tokens, tokens), kThreads}, stream, args,
                       frequencies);
    };
    if (!fits_octets(args)) return launch(qk_norm_rope_any_kernel<T>, kTokens);
    with_constant(rounds, [&](auto constant) {
      if (args.tokens <= kFewTokens) return launch(qk_norm_rope_kernel<T, 1, 1, constant()>, 1);
      launch(qk_norm_rope_kernel<T, kTokens, kItems, constant()>, kTokens);
    });
  });
  return fits_octets(args);
}

}  // namespace lfm2
