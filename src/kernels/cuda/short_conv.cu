// short_conv: gate, causal depthwise convolution, gate. A thread takes eight channels of some consecutive tokens, so
// that the last inputs stay in registers.
#include "kernels/cuda/device_types.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 128;
constexpr int kTokens = 8;  // of one thread

template <class T>
__device__ Octet gated_input(const ShortConvArgs& args, int64_t token, int64_t c, bool vector) {
  const T* row = static_cast<const T*>(args.bcz) + token * 3 * args.hidden + c;
  Octet u = load_octet(row, args.hidden - c, vector);
  const Octet z = load_octet(row + 2 * args.hidden, args.hidden - c, vector);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) u.v[i] *= z.v[i];
  return u;
}

__device__ Octet bias_of(const ShortConvArgs& args, int64_t c, bool vector) {
  return args.bias.data != nullptr ? load_octet(args.bias, c, args.hidden - c, vector) : Octet{};
}

template <class T>
__device__ void store_gated(const ShortConvArgs& args, int64_t token, int64_t c, Octet sum, bool vector) {
  const T* row = static_cast<const T*>(args.bcz) + token * 3 * args.hidden + args.hidden + c;
  const Octet gate = load_octet(row, args.hidden - c, vector);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] *= gate.v[i];
  store_octet(static_cast<T*>(args.out) + token * args.hidden + c, sum, args.hidden - c, vector);
}

// Three taps, the published models: past[0] is two tokens back, past[1] one.
template <class T>
__global__ void short_conv3_kernel(ShortConvArgs args, bool vector) {
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kOctet;
  if (c >= args.hidden) return;
  float taps[3][kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i)
#pragma unroll
    for (int j = 0; j < 3; ++j) taps[j][i] = c + i < args.hidden ? load_one(args.weight, (c + i) * 3 + j) : 0.0f;
  const Octet bias = bias_of(args, c, vector);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  Octet past[2] = {};
  for (int back = 2; back > 0; --back)
    if (first - back >= 0) past[2 - back] = gated_input<T>(args, first - back, c, vector);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int64_t token = first + t;
    if (token >= args.tokens) return;
    const int position = args.positions[token];
    const Octet now = gated_input<T>(args, token, c, vector);
    Octet sum = bias;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (position >= 2) sum.v[i] += taps[0][i] * past[0].v[i];
      if (position >= 1) sum.v[i] += taps[1][i] * past[1].v[i];
      sum.v[i] += taps[2][i] * now.v[i];
    }
    store_gated<T>(args, token, c, sum, vector);
    past[0] = past[1];
    past[1] = now;
  }
}

// Any number of taps: the past is read again for every token.
template <class T>
__global__ void short_conv_kernel(ShortConvArgs args, bool vector) {
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kOctet;
  if (c >= args.hidden) return;
  for (int t = 0; t < kTokens; ++t) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens + t;
    if (token >= args.tokens) return;
    const int64_t position = args.positions[token], last = args.taps - 1;
    Octet sum = bias_of(args, c, vector);
    for (int64_t back = position < last ? position : last; back >= 0; --back) {
      const Octet u = gated_input<T>(args, token - back, c, vector);
#pragma unroll
      for (int i = 0; i < kOctet; ++i)
        if (c + i < args.hidden) sum.v[i] += load_one(args.weight, (c + i) * args.taps + last - back) * u.v[i];
    }
    store_gated<T>(args, token, c, sum, vector);
  }
}

}  // namespace

void launch_short_conv(cudaStream_t stream, const ShortConvArgs& args, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  const bool vector = args.hidden % kOctet == 0 && on_16_bytes(args.bcz) && on_16_bytes(args.out) &&
                      (args.bias.data == nullptr || on_16_bytes(args.bias.data));
  const dim3 blocks(static_cast<unsigned>(ceil_divide(args.tokens, kTokens)),
                    static_cast<unsigned>(ceil_divide(args.hidden, kThreads * kOctet)));
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    if (args.taps == 3)
      short_conv3_kernel<T><<<blocks, kThreads, 0, stream>>>(args, vector);
    else
      short_conv_kernel<T><<<blocks, kThreads, 0, stream>>>(args, vector);
  });
  check_launch("short_conv_kernel");
}

}  // namespace lfm2
