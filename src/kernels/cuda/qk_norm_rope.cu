// qk_norm_rope: RMSNorm of every query and key head, then the rotation, in place.
#include "kernels/cuda/device_types.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 4;                    // of one block: they share the work on sines
constexpr int kPairs = kMaxHeadDim / 2 / 32;  // of one lane

// A warp takes a head; lane i rotates the pairs (i, i + head_dim / 2), (i + 32, …).
template <class T>
__global__ void qk_norm_rope_kernel(QkNormRopeArgs args, RopeFrequencies frequencies) {
  __shared__ float cosines[kTokens][kMaxHeadDim / 2], sines[kTokens][kMaxHeadDim / 2];
  const int half = args.head_dim / 2;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kTokens), args.tokens - first_token));
  // The angle is rounded to fp32, its sine and cosine are not: as the CPU's table.
  for (int i = threadIdx.x; i < tokens * half; i += kThreads) {
    const int t = i / half, pair = i % half;
    const float angle = static_cast<float>(args.positions[first_token + t]) * frequencies.values[pair];
    double sine, cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    cosines[t][pair] = static_cast<float>(cosine);
    sines[t][pair] = static_cast<float>(sine);
  }
  __syncthreads();

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
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(args.head_dim) + args.eps);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int i = lane + 32 * p;
      if (i >= half) break;
      const float a = first[p] * factor * load_one(weight, i), b = second[p] * factor * load_one(weight, half + i);
      x[i] = rounded<T>(a * cosines[t][i] - b * sines[t][i]);
      x[half + i] = rounded<T>(b * cosines[t][i] + a * sines[t][i]);
    }
  }
}

}  // namespace

void launch_qk_norm_rope(cudaStream_t stream, const QkNormRopeArgs& args, const RopeFrequencies& frequencies,
                         DType act) {
  if (args.tokens == 0) return;
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    qk_norm_rope_kernel<T>
        <<<static_cast<unsigned>(ceil_divide(args.tokens, kTokens)), kThreads, 0, stream>>>(args, frequencies);
  });
  check_launch("qk_norm_rope_kernel");
}

}  // namespace lfm2
