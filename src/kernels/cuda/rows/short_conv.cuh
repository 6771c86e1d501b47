// The kernels of short_conv and of cached_short_conv: gate, causal depthwise convolution, gate. A thread computes eight
// channels of some consecutive tokens.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/rows/fp8_rows.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_types.cuh"
#include "kernels/cuda/rows/short_conv_state.cuh"

namespace lfm2::conv {

constexpr int kLanes = 32, kWarps = 8;  // a block has 32 octets of channels, and each of its warps a run of tokens
static_assert(kLanes * kOctet == kConvBlockChannels);
constexpr int kBlockRow = kWarps * kLanes * kOctet;  // or a block has one run, and up to this many channels of it
constexpr int64_t kFewTokens = 1024;                 // up to this many tokens, a thread has one
// The number of tokens in a thread's run. The thread also loads the inputs before its run, which its neighbour loads,
// too.
template <class T>
constexpr int kTokens = 8 / static_cast<int>(sizeof(T));

template <class T>
__device__ Packed<T> load_part(const ShortConvArgs& args, int part, int64_t token, int64_t c, bool vector);
template <class T>
__device__ Octet product(const Packed<T>& left, const Packed<T>& right);
__device__ inline Octet bias_of(const ShortConvArgs& args, int64_t c, bool vector);
template <class T>
__device__ Octet gated(Octet sum, const Packed<T>& gate_bits);
template <class T>
__device__ void store_gated(const ShortConvArgs& args, int64_t token, int64_t c, const Octet& x, bool vector);
template <class T, int kRun>
__device__ void store_rounded_run(const ShortConvArgs& args, int64_t first, int64_t c, const Packed<T> (&rows)[kRun]);

// The convolution with three taps, which the published models have. All loads of a thread are in flight before the
// first is used.
// - operands: bcz [tokens, 3 hidden] and out [tokens, hidden] of type T, weight [hidden, 3] and bias [hidden] of any
//   type; cached: states [rows, 2, hidden] fp32, read from and written to other rows. `rounds`: args.rounded receives
//   the rows in fp8 instead of out.
// - block: kLanes octets of channels of kWarps runs of kRun consecutive tokens; `rounds`: all channels of one run.
// - thread: eight channels of one run; it also loads the two tokens before its run, which its neighbour loads too.
// - alignment: `vector`: hidden in octets, everything on 16 bytes; otherwise any. `rounds`: as short_conv_rounds()
// says.
template <class T, int kRun, bool cached, bool rounds>
__global__ void __launch_bounds__(kLanes* kWarps, 2)
    short_conv3_kernel(ShortConvArgs args, CachedConvArgs cache, bool vector) {
  pdl_trigger();
  const int64_t c = (static_cast<int64_t>(rounds ? threadIdx.y : blockIdx.y) * kLanes + threadIdx.x) * kOctet;
  const int64_t first = (rounds ? int64_t{blockIdx.x} : int64_t{blockIdx.x} * kWarps + threadIdx.y) * kRun;
  const bool mine = c < args.hidden && first < args.tokens;
  // No kernel writes weights and index arrays, so they are read before the wait.
  Octet taps[3];  // flattened [channel, tap]
  TokenCoord places[kRun];
  if (mine) {
#pragma unroll
    for (int j = 0; j < 3; ++j)
      taps[j] = load_octet(args.weight, c * 3 + j * kOctet, (args.hidden - c) * 3 - j * kOctet, vector);
#pragma unroll
    for (int t = 0; t < kRun; ++t)
      if (first + t < args.tokens) places[t] = place_of<cached>(args, cache, first + t);
  }
  const Octet bias = mine ? bias_of(args, c, vector) : Octet{};
  pdl_wait();
  if (!mine) return;                                // never with `rounds`
  Packed<T> b[kRun + 2], z[kRun + 2], gates[kRun];  // b and z begin two tokens before the run
#pragma unroll
  for (int t = 0; t < kRun + 2; ++t) {
    const int64_t token = first + t - 2;
    b[t] = z[t] = {};
    if (t < 2 ? places[0].here >= 2 - t : token < args.tokens) {
      b[t] = load_part<T>(args, 0, token, c, vector);
      z[t] = load_part<T>(args, 2, token, c, vector);
    }
  }
#pragma unroll
  for (int t = 0; t < kRun; ++t)
    if (first + t < args.tokens) gates[t] = load_part<T>(args, 1, first + t, c, vector);
  [[maybe_unused]] Packed<T> rows[kRun] = {};
  Octet past[2] = {product(b[0], z[0]), product(b[1], z[1])};  // the inputs two tokens back and one token back
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    if (first + t >= args.tokens) break;
    const Octet now = product(b[t + 2], z[t + 2]);
    const TokenCoord& place = places[t];
    if constexpr (cached) {
      const auto state = [&](int i) {
        return load_octet(state_at(args, cache, row_before(cache, place.sequence), i, c), args.hidden - c, vector);
      };
      if (place.here < 2 && place.position >= 2) past[0] = state(place.here);
      if (place.here < 1 && place.position >= 1) past[1] = state(1);
    }
    Octet sum = bias;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const auto tap = [&](int j) { return taps[(3 * i + j) / kOctet].v[(3 * i + j) % kOctet]; };
      sum.v[i] = convolve3(place.position, {tap(0), tap(1), tap(2)}, {past[0].v[i], past[1].v[i], now.v[i]}, sum.v[i]);
    }
    if constexpr (rounds)
      rows[t] = pack<T>(gated(sum, gates[t]));
    else
      store_gated<T>(args, first + t, c, gated(sum, gates[t]), vector);
    if constexpr (cached)
      for_each_row_behind(cache, place, [&](int64_t row) {
        if (place.position >= 1) store_octet(state_at(args, cache, row, 0, c), past[1], args.hidden - c, vector);
        store_octet(state_at(args, cache, row, 1, c), now, args.hidden - c, vector);
      });
    past[0] = past[1];
    past[1] = now;
  }
  if constexpr (rounds) store_rounded_run(args, first, c, rows);
}

template <class T>
__device__ Packed<T> load_part(const ShortConvArgs& args, int part, int64_t token, int64_t c, bool vector) {
  const T* row = static_cast<const T*>(args.bcz) + (token * 3 + part) * args.hidden + c;
  return load_packed(row, args.hidden - c, vector);
}

template <class T>
__device__ Octet product(const Packed<T>& left, const Packed<T>& right) {
  Octet x = unpack(left);
  const Octet y = unpack(right);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) x.v[i] *= y.v[i];
  return x;
}

__device__ inline Octet bias_of(const ShortConvArgs& args, int64_t c, bool vector) {
  return args.bias.data != nullptr ? load_octet(args.bias, c, args.hidden - c, vector) : Octet{};
}

template <class T>
__device__ Octet gated(Octet sum, const Packed<T>& gate_bits) {
  const Octet gate = unpack(gate_bits);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] *= gate.v[i];
  return sum;
}

template <class T>
__device__ void store_gated(const ShortConvArgs& args, int64_t token, int64_t c, const Octet& x, bool vector) {
  store_octet(static_cast<T*>(args.out) + token * args.hidden + c, x, args.hidden - c, vector);
}

// Rounds a run from token `first` on, of which the block has all channels and each thread those from c on.
template <class T, int kRun>
__device__ void store_rounded_run(const ShortConvArgs& args, int64_t first, int64_t c, const Packed<T> (&rows)[kRun]) {
  __shared__ float maxima[kRun][kWarps];
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    const float largest = max_over<32>(largest_magnitude(unpack(rows[t])));
    if (threadIdx.x == 0) maxima[t][threadIdx.y] = largest;
  }
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    if (first + t >= args.tokens) return;
    float largest = 0;
    for (unsigned warp = 0; warp < blockDim.y; ++warp) largest = fmaxf(largest, maxima[t][warp]);
    store_rounded(args.rounded, first + t, c, args.hidden, unpack(rows[t]), largest, true);
  }
}

// Two neighbouring channels in their stored type.
template <class T>
struct RawPair {
  uint32_t bits;
  __device__ float2 values() const { return unpack<T>(bits); }
};
template <>
struct RawPair<float> {
  float2 bits;
  __device__ float2 values() const { return bits; }
};
template <class T>
__device__ float2 product(const RawPair<T>& left, const RawPair<T>& right) {
  const float2 x = left.values(), y = right.values();
  return {x.x * y.x, x.y * y.y};
}

// The convolution with up to kPairTaps taps, of two channels of a run, so that all inputs stay in registers.
constexpr int kPairTaps = 8, kPairChannels = kLanes * 2;
// - operands: those of short_conv3_kernel, with weight [hidden, taps] and states [rows, taps - 1, hidden].
// - block: kPairChannels channels of kWarps runs of kRun consecutive tokens.
// - thread: two channels of one run; it also loads the tokens before its run, which its neighbour loads too.
// - alignment: hidden is even; bcz, out and states on two elements.
template <class T, int kRun, bool cached>
__global__ void __launch_bounds__(kLanes* kWarps, 2)
    short_conv_pairs_kernel(ShortConvArgs args, CachedConvArgs cache, bool) {
  pdl_trigger();
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kPairChannels + threadIdx.x * 2;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.y) * kRun;
  if (c >= args.hidden || first >= args.tokens) return pdl_wait();
  const int last = static_cast<int>(args.taps) - 1;
  // No kernel writes weights and index arrays, so they are read before the wait.
  float2 weights[kPairTaps] = {}, bias = {};  // weights[i]: of the input i tokens back
  with_elements(args.weight, [&](const auto* w) {
#pragma unroll
    for (int back = 0; back < kPairTaps; ++back)
      if (back <= last)
        weights[back] = {to_f32(w[c * args.taps + last - back]), to_f32(w[(c + 1) * args.taps + last - back])};
  });
  if (args.bias.data != nullptr) bias = {load_one(args.bias, c), load_one(args.bias, c + 1)};
  TokenCoord places[kRun];
#pragma unroll
  for (int t = 0; t < kRun; ++t)
    if (first + t < args.tokens) places[t] = place_of<cached>(args, cache, first + t);
  pdl_wait();
  const auto load = [&](int part, int64_t token) {
    const T* from = static_cast<const T*>(args.bcz) + (token * 3 + part) * args.hidden + c;
    return *reinterpret_cast<const RawPair<T>*>(from);
  };
  RawPair<T> parts[kRun][3] = {}, before[kPairTaps - 1][2] = {};  // B, C, z of the run; B and z before it
#pragma unroll
  for (int back = 1; back < kPairTaps; ++back)
    if (back <= last && places[0].here >= back) {
      before[back - 1][0] = load(0, first - back);
      before[back - 1][1] = load(2, first - back);
    }
#pragma unroll
  for (int t = 0; t < kRun; ++t)
    if (first + t < args.tokens)
#pragma unroll
      for (int part = 0; part < 3; ++part) parts[t][part] = load(part, first + t);
  float2 inputs[kPairTaps];  // inputs[i]: i tokens back
#pragma unroll
  for (int back = 1; back < kPairTaps; ++back) inputs[back - 1] = product(before[back - 1][0], before[back - 1][1]);
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    if (first + t >= args.tokens) break;
    const TokenCoord& place = places[t];
#pragma unroll
    for (int back = kPairTaps - 1; back > 0; --back) inputs[back] = inputs[back - 1];
    inputs[0] = product(parts[t][0], parts[t][2]);
    const auto state = [&](int64_t row, int entry) -> float2& {
      return *reinterpret_cast<float2*>(state_at(args, cache, row, entry, c));
    };
    if constexpr (cached)
#pragma unroll
      for (int back = 1; back < kPairTaps; ++back)
        if (back <= last && back > place.here && back <= place.position)
          inputs[back] = state(row_before(cache, place.sequence), last + place.here - back);
    float2 sum = bias;
#pragma unroll
    for (int back = kPairTaps - 1; back >= 0; --back)
      if (back <= last && back <= place.position)
        sum = {fmaf(weights[back].x, inputs[back].x, sum.x), fmaf(weights[back].y, inputs[back].y, sum.y)};
    const float2 gate = parts[t][1].values();
    T* const out = static_cast<T*>(args.out) + (first + t) * args.hidden + c;
    if constexpr (sizeof(T) == 4)
      *reinterpret_cast<float2*>(out) = {sum.x * gate.x, sum.y * gate.y};
    else
      *reinterpret_cast<uint32_t*>(out) = pack<T>(sum.x * gate.x, sum.y * gate.y);
    if constexpr (cached)
      for_each_row_behind(cache, place, [&](int64_t row) {
#pragma unroll
        for (int back = 0; back < kPairTaps - 1; ++back)
          if (back < last && back <= place.position) state(row, last - 1 - back) = inputs[back];
      });
  }
}

// The convolution with any number of taps. The inputs before a token are read again for every token.
// - operands: those of short_conv3_kernel, with weight [hidden, taps] and states [rows, taps - 1, hidden].
// - block: kLanes octets of channels of kWarps runs of kTokens consecutive tokens.
// - thread: eight channels of one run, token after token.
// - alignment: as for short_conv3_kernel.
template <class T, bool cached>
__global__ void __launch_bounds__(kLanes* kWarps)
    short_conv_kernel(ShortConvArgs args, CachedConvArgs cache, bool vector) {
  pdl_trigger();
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kLanes + threadIdx.x) * kOctet;
  pdl_wait();
  if (c >= args.hidden) return;
  const int64_t last = args.taps - 1;
  for (int t = 0; t < kTokens<T>; ++t) {
    const int64_t token = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kTokens<T> + t;
    if (token >= args.tokens) return;
    const TokenCoord place = place_of<cached>(args, cache, token);
    const auto input = [&](int64_t back) {
      if (cached && back > place.here)
        return load_octet(state_at(args, cache, row_before(cache, place.sequence), last + place.here - back, c),
                          args.hidden - c, vector);
      return product(load_part<T>(args, 0, token - back, c, vector), load_part<T>(args, 2, token - back, c, vector));
    };
    Octet sum = bias_of(args, c, vector);
    for (int64_t back = place.position < last ? place.position : last; back >= 0; --back) {
      const Octet u = input(back);
#pragma unroll
      for (int i = 0; i < kOctet; ++i)
        if (c + i < args.hidden)
          sum.v[i] = fmaf(load_one(args.weight, (c + i) * args.taps + last - back), u.v[i], sum.v[i]);
    }
    store_gated<T>(args, token, c, gated(sum, load_part<T>(args, 1, token, c, vector)), vector);
    if constexpr (cached)
      for_each_row_behind(cache, place, [&](int64_t row) {
        for (int64_t back = place.position < last - 1 ? place.position : last - 1; back >= 0; --back)
          store_octet(state_at(args, cache, row, last - 1 - back, c), input(back), args.hidden - c, vector);
      });
  }
}

template <class T, bool cached>
void launch_kernels(cudaStream_t stream, const ShortConvArgs& args, const CachedConvArgs& cache) {
  const bool rounds = args.rounded.elements != nullptr;
  const bool vector = args.hidden % kOctet == 0 && on_16_bytes(args.bcz) && on_16_bytes(args.out) &&
                      on_16_bytes(args.weight.data) && on_16_bytes(args.bias.data) && on_16_bytes(cache.states);
  const auto start = [&](auto kernel, int64_t run, int64_t channels = kConvBlockChannels) {
    const auto parts = static_cast<unsigned>(ceil_divide(args.hidden, channels));  // blocks or warps of channels
    const dim3 blocks(static_cast<unsigned>(ceil_divide(args.tokens, rounds ? run : kWarps * run)), rounds ? 1 : parts);
    const dim3 threads(kLanes, rounds ? parts : kWarps);
    launch_dependent("short_conv_kernel", kernel, {blocks, threads}, stream, args, cache, vector);
  };
  if (args.taps != 3) {
    const bool pairs = args.taps <= kPairTaps && args.hidden % 2 == 0 && args.hidden <= kMaxGridRows * kPairChannels &&
                       on_16_bytes(args.bcz) && on_16_bytes(args.out) && on_16_bytes(cache.states);
    if (!pairs) return start(short_conv_kernel<T, cached>, kTokens<T>);
    if constexpr (cached)
      if (args.tokens <= kFewTokens) return start(short_conv_pairs_kernel<T, 1, true>, 1, kPairChannels);
    return start(short_conv_pairs_kernel<T, 2 * kTokens<T>, cached>, 2 * kTokens<T>, kPairChannels);
  }
  const auto start_taps3 = [&](auto rounding) {
    if constexpr (cached)
      if (args.tokens <= kFewTokens) return start(short_conv3_kernel<T, 1, true, rounding()>, 1);
    start(short_conv3_kernel<T, kTokens<T>, cached, rounding()>, kTokens<T>);
  };
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    if (rounds) return start_taps3(std::true_type{});
  start_taps3(std::false_type{});
}

}  // namespace lfm2::conv
