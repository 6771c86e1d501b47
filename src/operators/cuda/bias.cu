// bias: one pass over a dense matrix in units of 16 bytes, whatever its number of columns.
#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kSteps = 4;  // units of a thread

template <class T>
struct BiasArgs {
  const T* input;
  const T* bias;
  T* output;
  int64_t elements;
  Divider columns, rows_per_sample;
  bool by_column;   // bias[column], else bias[row mod rows_per_sample]
  bool units;       // input and output on 16 bytes
  bool bias_units;  // and a unit never leaves a row, and the bias on 16 bytes
  Activation activation;
};

// The biases of the `count` elements from `element` on.
template <class T>
__device__ void load_bias(const BiasArgs<T>& args, int64_t element, int count, float (&shift)[kUnit<T>]) {
  int64_t row = args.columns.quotient(element), column = element - row * args.columns.divisor;
  if (args.by_column) {
    if (args.bias_units) {
      Unit<T> unit;
      unit.bits = *reinterpret_cast<const uint4*>(args.bias + column);
      return unpack(unit, shift);
    }
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      if (i >= count) continue;
      shift[i] = to_f32(args.bias[column]);
      column = column + 1 == args.columns.divisor ? 0 : column + 1;
    }
    return;
  }
  int64_t own = row - args.rows_per_sample.quotient(row) * args.rows_per_sample.divisor;
  float value = to_f32(args.bias[own]);
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    if (i >= count) continue;
    shift[i] = value;
    if (++column == args.columns.divisor && i + 1 < count) {
      column = 0;
      own = own + 1 == args.rows_per_sample.divisor ? 0 : own + 1;
      value = to_f32(args.bias[own]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) bias_kernel(const __grid_constant__ BiasArgs<T> args) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kSteps * kThreads + threadIdx.x) * kUnit<T>;
  Unit<T> units[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t element = begin + static_cast<int64_t>(step) * kThreads * kUnit<T>;
    if (args.units && element + kUnit<T> <= args.elements) {
      units[step].bits = *reinterpret_cast<const uint4*>(args.input + element);
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i)
        if (element + i < args.elements) units[step].elements[i] = args.input[element + i];
    }
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t element = begin + static_cast<int64_t>(step) * kThreads * kUnit<T>;
    if (element >= args.elements) return;
    const int count = static_cast<int>(min(static_cast<int64_t>(kUnit<T>), args.elements - element));
    float x[kUnit<T>], shift[kUnit<T>] = {};
    load_bias(args, element, count, shift);
    unpack(units[step], x);
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) x[i] += shift[i];
    apply(unary(args.activation), x);
    pack(x, units[step]);
    if (args.units && count == kUnit<T>) {
      *reinterpret_cast<uint4*>(args.output + element) = units[step].bits;
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i)
        if (i < count) args.output[element + i] = units[step].elements[i];
    }
  }
}

}  // namespace

Status bias(const TensorView& input, const TensorView& bias, const TensorView& output, BiasLayout layout,
            Activation activation, void* stream) {
  const OnDevice on_device(output.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(output.dtype, [&](auto zero) {
    using T = decltype(zero);
    BiasArgs<T> args{};
    args.input = static_cast<const T*>(input.data);
    args.bias = static_cast<const T*>(bias.data);
    args.output = static_cast<T*>(output.data);
    args.elements = output.numel();
    args.columns = Divider(output.dim(1));
    args.by_column = layout.rows_per_sample == 0;
    args.rows_per_sample = Divider(args.by_column ? 1 : layout.rows_per_sample);
    args.units = on_bytes(args.input, 16) && on_bytes(args.output, 16);
    args.bias_units = args.by_column && output.dim(1) % kUnit<T> == 0 && on_bytes(args.bias, 16);
    args.activation = activation;
    const int64_t blocks = ceil_divide(args.elements, int64_t{kThreads} * kSteps * kUnit<T>);
    return launch(bias_kernel<T>, blocks, kThreads, stream, args);
  });
}

}  // namespace lfm2::operators::gpu
