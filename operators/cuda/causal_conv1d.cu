// causal_conv1d: the direct kernel, and the two that prepare the formulation as a matrix product.
#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kRun = 4;  // consecutive outputs of a thread

template <class T>
struct Conv {
  const T* x;
  const T* w;
  const T* bias;
  T* y;
  int64_t time, filter, runs;  // runs: number of threads along time
  int64_t x_strides[3], y_strides[3], w_strides[2], bias_stride;
  Divider channels, runs_of_row;
  int64_t count;
  bool channels_first;  // neighbouring threads take neighbouring channels, otherwise neighbouring times
  bool pieces;          // a run of y is one aligned piece of memory; with kTaps > 0, a run of x, too
  Activation activation;
};

template <class T>
struct alignas(sizeof(T) * kRun) Piece {
  T v[kRun];
};

// - operands: x, y [samples, channels, time], w [channels, filter], bias [channels] or null, of any strides.
// - block: kThreads runs.
// - thread: a run of kRun consecutive times of one channel.
// - alignment: any. If kTaps > 0, the filter has kTaps taps, at most kRun + 1, and x consists of whole aligned runs.
template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads) causal_conv1d_kernel(const __grid_constant__ Conv<T> args) {
  const int64_t ordinal = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (ordinal >= args.count) return;
  int64_t sample, channel, run;
  if (args.channels_first) {  // the order is sample, run, channel
    const int64_t rest = args.channels.quotient(ordinal);
    channel = ordinal - rest * args.channels.divisor;
    sample = args.runs_of_row.quotient(rest);
    run = rest - sample * args.runs;
  } else {  // the order is sample, channel, run
    const int64_t rest = args.runs_of_row.quotient(ordinal);
    run = ordinal - rest * args.runs;
    sample = args.channels.quotient(rest);
    channel = rest - sample * args.channels.divisor;
  }
  const T* x = args.x + sample * args.x_strides[0] + channel * args.x_strides[1];
  const T* w = args.w + channel * args.w_strides[0];
  T* y = args.y + sample * args.y_strides[0] + channel * args.y_strides[1];
  const int64_t t0 = run * kRun, step = args.x_strides[2];
  const int count = static_cast<int>(min(static_cast<int64_t>(kRun), args.time - t0));

  float sums[kRun] = {};
  if constexpr (kTaps > 0) {  // the window is this run and the one before it
    const Piece<T> now = *reinterpret_cast<const Piece<T>*>(x + t0);
    Piece<T> before = {};
    if (run > 0) before = *reinterpret_cast<const Piece<T>*>(x + t0 - kRun);
    float window[2 * kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      window[i] = run > 0 ? to_f32(before.v[i]) : 0.0f, window[kRun + i] = to_f32(now.v[i]);
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const float tap = to_f32(w[j * args.w_strides[1]]);
#pragma unroll
      for (int i = 0; i < kRun; ++i) sums[i] = fmaf(tap, window[kRun + i - (kTaps - 1) + j], sums[i]);
    }
  } else {  // the window slides over the taps: before tap j, window[i] is x at t0 + i - (filter - 1) + j
    const auto at = [&](int64_t t) { return t >= 0 && t < args.time ? to_f32(x[t * step]) : 0.0f; };
    float window[kRun];
    const int64_t first = t0 - (args.filter - 1);
#pragma unroll
    for (int i = 0; i < kRun - 1; ++i) window[i + 1] = at(first + i);
#pragma unroll 4
    for (int64_t j = 0; j < args.filter; ++j) {
#pragma unroll
      for (int i = 0; i < kRun - 1; ++i) window[i] = window[i + 1];
      window[kRun - 1] = at(first + kRun - 1 + j);
      const float tap = to_f32(w[j * args.w_strides[1]]);
#pragma unroll
      for (int i = 0; i < kRun; ++i) sums[i] = fmaf(tap, window[i], sums[i]);
    }
  }
  const float shift = args.bias != nullptr ? to_f32(args.bias[channel * args.bias_stride]) : 0.0f;
#pragma unroll
  for (int i = 0; i < kRun; ++i) sums[i] += shift;
  apply<MathFor<T>>(args.activation, sums);
  if (args.pieces && count == kRun) {
    Piece<T> piece;
#pragma unroll
    for (int i = 0; i < kRun; ++i) piece.v[i] = rounded<T>(sums[i]);
    *reinterpret_cast<Piece<T>*>(y + t0) = piece;
    return;
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i)
    if (i < count) y[(t0 + i) * args.y_strides[2]] = rounded<T>(sums[i]);
}

constexpr int kTile = 32;     // number of channels, of times, and of taps of a block
constexpr int kTileRows = 8;  // kThreads / kTile

// - operands: x [samples, channels, time]; out unfolded [samples, time, filter, channels]; both dense, T: unsigned
//   integers of the elements' size.
// - block: 32 channels, 32 times and 32 taps: x of these channels, at these times and the 32 before them, is turned
//   in shared memory and written once for each tap.
// - thread: first a time, then a channel.
// - alignment: any.
template <class T>
__global__ void __launch_bounds__(kThreads)
    unfold_kernel(const T* x, T* unfolded, int64_t channels, int64_t time, int64_t filter, Divider channel_tiles,
                  Divider time_tiles, Divider tap_tiles) {
  __shared__ T tile[2 * kTile][kTile + 1];  // [time, channel]
  int64_t rest = channel_tiles.quotient(blockIdx.x);
  const int64_t c0 = (blockIdx.x - rest * channel_tiles.divisor) * kTile;
  int64_t next = tap_tiles.quotient(rest);
  const int64_t j0 = (rest - next * tap_tiles.divisor) * kTile;
  rest = next;
  const int64_t sample = time_tiles.quotient(rest);
  const int64_t t0 = (rest - sample * time_tiles.divisor) * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kTile, part = static_cast<int>(threadIdx.x) / kTile;
  const int taps = static_cast<int>(min(static_cast<int64_t>(kTile), filter - j0));
  const int64_t first = t0 - (filter - 1) + j0;  // the first of the tile's times
  const T* rows = x + sample * channels * time;
  for (int c = part; c < kTile; c += kTileRows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t t = first + lane + half * kTile;
      const bool inside = c0 + c < channels && t >= 0 && t < time;
      tile[lane + half * kTile][c] = inside ? rows[(c0 + c) * time + t] : T{0};
    }
  }
  __syncthreads();
  if (c0 + lane >= channels) return;
  T* out = unfolded + sample * time * filter * channels;
  for (int t = part; t < kTile && t0 + t < time; t += kTileRows)
    for (int j = 0; j < taps; ++j) out[((t0 + t) * filter + j0 + j) * channels + c0 + lane] = tile[t + j][lane];
}

// - operands: w [channels, filter]; out expanded [channels, filter, channels], which has w on its diagonals and
//   zeros elsewhere; both dense, T: unsigned integers of the elements' size.
// - block: kThreads elements of expanded.
// - thread: one of them.
// - alignment: any.
template <class T>
__global__ void __launch_bounds__(kThreads)
    expand_kernel(const T* w, T* expanded, int64_t filter, int64_t count, Divider channels, Divider wide) {
  const int64_t ordinal = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (ordinal >= count) return;
  const int64_t c = wide.quotient(ordinal), rest = ordinal - c * wide.divisor;
  const int64_t j = channels.quotient(rest), d = rest - j * channels.divisor;
  expanded[ordinal] = c == d ? w[c * filter + j] : T{0};
}

}  // namespace

Status causal_conv1d(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                     Activation activation, void* stream) {
  const OnDevice on_device(y.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(y.dtype, [&](auto zero) {
    using T = decltype(zero);
    Conv<T> args{};
    args.x = static_cast<const T*>(x.data);
    args.w = static_cast<const T*>(w.data);
    args.bias = bias != nullptr ? static_cast<const T*>(bias->data) : nullptr;
    args.bias_stride = bias != nullptr ? bias->stride(0) : 0;
    args.y = static_cast<T*>(y.data);
    args.time = x.dim(2);
    args.filter = w.dim(1);
    args.runs = ceil_divide(args.time, kRun);
    for (int axis = 0; axis < 3; ++axis) {
      args.x_strides[axis] = x.stride(axis);
      args.y_strides[axis] = y.stride(axis);
    }
    args.w_strides[0] = w.stride(0), args.w_strides[1] = w.stride(1);
    args.channels = Divider(x.dim(1));
    args.runs_of_row = Divider(args.runs);
    args.count = x.dim(0) * x.dim(1) * args.runs;
    args.channels_first = y.stride(1) == 1 && y.stride(2) != 1;
    args.pieces =
        y.stride(2) == 1 && y.stride(0) % kRun == 0 && y.stride(1) % kRun == 0 && on_bytes(args.y, sizeof(T) * kRun);
    args.activation = activation;
    const bool whole = args.pieces && args.time % kRun == 0 && x.stride(2) == 1 && x.stride(0) % kRun == 0 &&
                       x.stride(1) % kRun == 0 && on_bytes(args.x, sizeof(T) * kRun);
    auto* kernel = causal_conv1d_kernel<T, 0>;
    if (whole && args.filter == 2) kernel = causal_conv1d_kernel<T, 2>;
    if (whole && args.filter == 3) kernel = causal_conv1d_kernel<T, 3>;
    if (whole && args.filter == 4) kernel = causal_conv1d_kernel<T, 4>;
    return launch(kernel, ceil_divide(args.count, kThreads), kThreads, stream, args);
  });
}

Status causal_conv1d_unfold(const TensorView& x, int64_t filter, const TensorView& unfolded, void* stream) {
  const OnDevice on_device(x.device);
  STATUS_CHECK(on_device.status());
  return with_bits(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Divider channel_tiles(ceil_divide(x.dim(1), kTile)), time_tiles(ceil_divide(x.dim(2), kTile)),
        tap_tiles(ceil_divide(filter, kTile));
    const int64_t blocks = channel_tiles.divisor * time_tiles.divisor * tap_tiles.divisor * x.dim(0);
    return launch(unfold_kernel<T>, blocks, kThreads, stream, static_cast<const T*>(x.data),
                  static_cast<T*>(unfolded.data), x.dim(1), x.dim(2), filter, channel_tiles, time_tiles, tap_tiles);
  });
}

Status causal_conv1d_expand(const TensorView& w, const TensorView& expanded, void* stream) {
  const OnDevice on_device(w.device);
  STATUS_CHECK(on_device.status());
  return with_bits(w.dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(expand_kernel<T>, ceil_divide(expanded.numel(), kThreads), kThreads, stream,
                  static_cast<const T*>(w.data), static_cast<T*>(expanded.data), w.dim(1), expanded.numel(),
                  Divider(w.dim(0)), Divider(expanded.dim(1)));
  });
}

}  // namespace lfm2::operators::gpu
