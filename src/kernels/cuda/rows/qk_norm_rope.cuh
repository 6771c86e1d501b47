// The norm of query and key heads and their rotation, for heads whose octet pairs are a power of two: what
// qk_norm_rope_kernel and qk_norm_rope_append_kernel share.
#pragma once

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/fp8_cache.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2::qk_norm_rope {

constexpr int kThreads = 256;
constexpr int kTokens = 8;            // tokens of a block, which computes their sines once for all heads
constexpr int kItems = 5;             // octet pairs that a thread has in flight
constexpr int64_t kFewTokens = 1024;  // up to this many tokens, each has its own block

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

// Whether the kernels here support these heads.
inline bool fits_octets(const QkNormRopeArgs& args) {
  const int lanes = args.head_dim / (2 * kOctet);
  return lanes > 0 && args.head_dim % (2 * kOctet) == 0 && (lanes & (lanes - 1)) == 0 && args.columns % kOctet == 0 &&
         on_16_bytes(args.qkv);
}

// A keeper that does nothing with keys and values.
struct NoKeeper {
  static constexpr bool kKeeps = false, kRounds = false;
  __device__ void find_rows(int64_t, int) const {}
  template <class T, class P>
  __device__ void keep(int, int, int, T*, const P&, const P&) const {}
};

// A head of keys or values in fp8. The lanes that share the head compute it together, each its octets `low` and `high`.
template <class T>
struct RoundedHead {
  uint2 low, high;  // E4M3
  int exponent;     // of the scale

  __device__ RoundedHead(const Packed<T>& low_octet, const Packed<T>& high_octet, int lanes) {
    const Octet a = unpack(low_octet), b = unpack(high_octet);
    float largest = larger_magnitude(larger_magnitude(0, a), b);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned sharing = ((1u << lanes) - 1) << (lane / lanes * lanes);  // at most 16 lanes
    for (int step = lanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(sharing, largest, step));
    exponent = scale_exponent(largest, kMaxScaleExponent<T>);
    low = to_fp8(a, inverse_scale_of(exponent));
    high = to_fp8(b, inverse_scale_of(exponent));
  }
  // An octet as elements of type T again.
  __device__ Packed<T> values(uint2 octet) const {
    const float4 first = from_fp8(octet.x, scale_of(exponent)), second = from_fp8(octet.y, scale_of(exponent));
    return pack<T>(Octet{{first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}});
  }
};

// Rounds keys and values to fp8 in place.
template <class T>
struct Rounder {
  static constexpr bool kKeeps = true, kRounds = true;
  const QkNormRopeArgs& args;

  __device__ void find_rows(int64_t, int) const {}
  __device__ RoundedHead<T> round(T* place, const Packed<T>& low, const Packed<T>& high) const {
    const int half = args.head_dim / 2;
    const RoundedHead<T> head(low, high, half / kOctet);
    store_packed(place, head.values(head.low), kOctet, true);
    store_packed(place + half, head.values(head.high), kOctet, true);
    return head;
  }
  __device__ void keep(int, int, int, T* place, const Packed<T>& low, const Packed<T>& high) const {
    round(place, low, high);
  }
};

// What a block of these kernels does. Everything that needs only weights and positions comes before the wait. A keeper
// that keeps is called with the rotated keys, then the values, of each token: keep(token of the block, head, element,
// its place in qkv, the octet from there on, the octet head_dim / 2 further). A keeper that rounds also stores them in
// qkv.
template <class T, int kBlockTokens, int kEach, class Keeper>
__device__ __forceinline__ void turn_heads(const QkNormRopeArgs& args, const RopeFrequencies& frequencies,
                                           Keeper keeper) {
  pdl_trigger();
  __shared__ Turns<kBlockTokens> turns;
  __shared__ float weights[2][kMaxHeadDim];  // the weights of queries, then those of keys
  const int half = args.head_dim / 2, lanes = half / kOctet, rotated = args.heads + args.kv_heads;
  const int heads = rotated + (Keeper::kKeeps ? args.kv_heads : 0);  // heads to process
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kBlockTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kBlockTokens), args.tokens - first_token));
  for (int i = threadIdx.x; i < args.head_dim; i += kThreads) {
    weights[0][i] = load_one(args.q_weight, i);
    weights[1][i] = load_one(args.k_weight, i);
  }
  fill_turns(turns, args, frequencies, first_token, tokens);
  keeper.find_rows(first_token, tokens);
  __syncthreads();
  pdl_wait();

  const int64_t columns = args.columns;
  T* const base = static_cast<T*>(args.qkv) + first_token * columns;
  const int per_token = heads * lanes, end = tokens * per_token;
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
      const int head = at / lanes, first = at % lanes * kOctet;
      if (head >= rotated) {
        keeper.keep(t, head - args.heads, first, places[k], low[k], high[k]);
        continue;
      }
      const float factor = rms_factor(squares, args.head_dim, args.eps);
      const float* weight = weights[head < args.heads ? 0 : 1];
      Octet turned_low, turned_high;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        const float x = a.v[i] * factor * weight[first + i], y = b.v[i] * factor * weight[half + first + i];
        const float cosine = turns.cosines[t][first + i], sine = turns.sines[t][first + i];
        turned_low.v[i] = x * cosine - y * sine;
        turned_high.v[i] = y * cosine + x * sine;
      }
      low[k] = pack<T>(turned_low);
      high[k] = pack<T>(turned_high);
      if (!Keeper::kRounds || head < args.heads) {
        store_packed(places[k], low[k], kOctet, true);
        store_packed(places[k] + half, high[k], kOctet, true);
      }
      if (head >= args.heads) keeper.keep(t, head - args.heads, first, places[k], low[k], high[k]);
    }
  }
}

}  // namespace lfm2::qk_norm_rope
