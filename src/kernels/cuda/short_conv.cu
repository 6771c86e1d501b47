// short_conv: gate, causal depthwise convolution, gate. A thread takes eight channels of some consecutive tokens.
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/row_types.cuh"

namespace lfm2 {

namespace {

constexpr int kLanes = 32, kWarps = 8;  // a block: 32 octets of channels, and in its warps, runs of tokens
// Tokens of one thread. What it needs of the run before, its neighbour reads too.
template <class T>
constexpr int kTokens = 8 / static_cast<int>(sizeof(T));

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

__device__ Octet bias_of(const ShortConvArgs& args, int64_t c, bool vector) {
  return args.bias.data != nullptr ? load_octet(args.bias, c, args.hidden - c, vector) : Octet{};
}

template <class T>
__device__ void store_gated(const ShortConvArgs& args, int64_t token, int64_t c, Octet sum, const Packed<T>& gate_bits,
                            bool vector) {
  const Octet gate = unpack(gate_bits);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] *= gate.v[i];
  store_octet(static_cast<T*>(args.out) + token * args.hidden + c, sum, args.hidden - c, vector);
}

// Three taps, the published models. Every load of a thread is in flight before the first is used.
template <class T>
__global__ void __launch_bounds__(kLanes* kWarps, 2) short_conv3_kernel(ShortConvArgs args, bool vector) {
  constexpr int kRun = kTokens<T>;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kLanes + threadIdx.x) * kOctet;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kRun;
  const bool mine = c < args.hidden && first < args.tokens;
  // Constants, and the positions, which are the host's: before the wait.
  Octet taps[3];  // flat: [channel, tap]
  int positions[kRun];
  if (mine) {
#pragma unroll
    for (int j = 0; j < 3; ++j)
      taps[j] = load_octet(args.weight, c * 3 + j * kOctet, (args.hidden - c) * 3 - j * kOctet, vector);
#pragma unroll
    for (int t = 0; t < kRun; ++t) positions[t] = first + t < args.tokens ? args.positions[first + t] : 0;
  }
  wait_for_previous();
  let_next_start();
  if (!mine) return;
  const Octet bias = bias_of(args, c, vector);
  Packed<T> b[kRun + 2], z[kRun + 2], gates[kRun];  // b and z from two tokens back
#pragma unroll
  for (int t = 0; t < kRun + 2; ++t) {
    const int64_t token = first + t - 2;
    b[t] = z[t] = {};
    if (t < 2 ? positions[0] >= 2 - t : token < args.tokens) {
      b[t] = load_part<T>(args, 0, token, c, vector);
      z[t] = load_part<T>(args, 2, token, c, vector);
    }
  }
#pragma unroll
  for (int t = 0; t < kRun; ++t)
    if (first + t < args.tokens) gates[t] = load_part<T>(args, 1, first + t, c, vector);
  Octet past[2] = {product(b[0], z[0]), product(b[1], z[1])};  // two tokens back, and one
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    if (first + t >= args.tokens) return;
    const Octet now = product(b[t + 2], z[t + 2]);
    Octet sum = bias;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const auto tap = [&](int j) { return taps[(3 * i + j) / kOctet].v[(3 * i + j) % kOctet]; };
      if (positions[t] >= 2) sum.v[i] += tap(0) * past[0].v[i];
      if (positions[t] >= 1) sum.v[i] += tap(1) * past[1].v[i];
      sum.v[i] += tap(2) * now.v[i];
    }
    store_gated(args, first + t, c, sum, gates[t], vector);
    past[0] = past[1];
    past[1] = now;
  }
}

// Any number of taps: the past is read again for every token.
template <class T>
__global__ void __launch_bounds__(kLanes* kWarps) short_conv_kernel(ShortConvArgs args, bool vector) {
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kLanes + threadIdx.x) * kOctet;
  wait_for_previous();
  let_next_start();
  if (c >= args.hidden) return;
  for (int t = 0; t < kTokens<T>; ++t) {
    const int64_t token = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kTokens<T> + t;
    if (token >= args.tokens) return;
    const int64_t position = args.positions[token], last = args.taps - 1;
    Octet sum = bias_of(args, c, vector);
    for (int64_t back = position < last ? position : last; back >= 0; --back) {
      const Octet u =
          product(load_part<T>(args, 0, token - back, c, vector), load_part<T>(args, 2, token - back, c, vector));
#pragma unroll
      for (int i = 0; i < kOctet; ++i)
        if (c + i < args.hidden) sum.v[i] += load_one(args.weight, (c + i) * args.taps + last - back) * u.v[i];
    }
    store_gated(args, token, c, sum, load_part<T>(args, 1, token, c, vector), vector);
  }
}

}  // namespace

void launch_short_conv(cudaStream_t stream, const ShortConvArgs& args, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  const bool vector = args.hidden % kOctet == 0 && on_16_bytes(args.bcz) && on_16_bytes(args.out) &&
                      on_16_bytes(args.weight.data) && (args.bias.data == nullptr || on_16_bytes(args.bias.data));
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    const dim3 blocks(static_cast<unsigned>(ceil_divide(args.tokens, kWarps * kTokens<T>)),
                      static_cast<unsigned>(ceil_divide(args.hidden, kLanes * kOctet)));
    const auto kernel = args.taps == 3 ? short_conv3_kernel<T> : short_conv_kernel<T>;
    launch_dependent("short_conv_kernel", kernel, {blocks, dim3(kLanes, kWarps)}, stream, args, vector);
  });
}

}  // namespace lfm2
