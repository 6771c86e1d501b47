// bias: one pass over a dense matrix in units of 16 bytes, whatever its number of columns. If the bias has an element
// for each column, a thread's units are whole rows apart, so that all of them use the same elements of the bias.
#include <numeric>

#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kSteps = 4;  // number of units of a thread

template <class T>
struct BiasArgs {
  const T* input;
  const T* bias;
  T* output;
  int64_t elements;
  Divider columns, rows_per_sample;
  Divider apart;   // distance in units between a thread's units
  bool by_column;  // bias[column], else bias[row mod rows_per_sample]
  bool units;      // input and output are on 16 bytes
  bool row_units;  // no unit spans two rows; with by_column, the bias is also on 16 bytes
  bool long_rows;  // no unit spans more than two rows
  Activation activation;
};

template <class T, class Index>
__device__ void load_bias(const BiasArgs<T>& args, Index element, float (&shift)[kUnit<T>]);

// - operands: input, output [rows, columns]; bias [columns] or [rows_per_sample].
// - block: kThreads units in kSteps steps.
// - thread: kSteps units of 16 bytes, args.apart units apart.
// - alignment: any; the members of BiasArgs tell which rows and biases are aligned.
template <class T, class Index>
__global__ void __launch_bounds__(kThreads) bias_kernel(const __grid_constant__ BiasArgs<T> args) {
  const Index thread = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  const Index chunk = args.apart.quotient(thread), apart = static_cast<Index>(args.apart.divisor);
  const int64_t begin = (static_cast<int64_t>(chunk) * (kSteps - 1) * apart + thread) * kUnit<T>;
  const int64_t step_elements = static_cast<int64_t>(apart) * kUnit<T>;
  if (begin >= args.elements) return;
  Unit<T> units[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t element = begin + step * step_elements;
    if (args.units && element + kUnit<T> <= args.elements) {
      units[step].bits = *reinterpret_cast<const uint4*>(args.input + element);
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i)
        if (element + i < args.elements) units[step].elements[i] = args.input[element + i];
    }
  }
  float shift[kUnit<T>];
  if (args.by_column) load_bias(args, static_cast<Index>(begin), shift);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t element = begin + step * step_elements;
    if (element >= args.elements) return;
    const int count = static_cast<int>(min(static_cast<int64_t>(kUnit<T>), args.elements - element));
    float x[kUnit<T>];
    if (!args.by_column) load_bias(args, static_cast<Index>(element), shift);
    unpack(units[step], x);
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) x[i] += shift[i];
    apply<MathFor<T>>(args.activation, x);
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

// Loads the biases of the unit's elements, from `element` on.
template <class T, class Index>
__device__ void load_bias(const BiasArgs<T>& args, Index element, float (&shift)[kUnit<T>]) {
  const Index columns = static_cast<Index>(args.columns.divisor), row = args.columns.quotient(element);
  Index column = element - row * columns;
  if (args.by_column) {
    if (args.row_units) {
      Unit<T> unit;
      unit.bits = *reinterpret_cast<const uint4*>(args.bias + column);
      return unpack(unit, shift);
    }
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      shift[i] = to_f32(args.bias[column]);
      column = column + 1 == columns ? 0 : column + 1;
    }
    return;
  }
  const Index period = static_cast<Index>(args.rows_per_sample.divisor);
  Index own = row - args.rows_per_sample.quotient(row) * period;
  float value = to_f32(args.bias[own]);
  if (args.row_units) {
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) shift[i] = value;
    return;
  }
  const auto next = [&](Index from) { return from + 1 == period ? 0 : from + 1; };
  if (args.long_rows) {
    const float other = to_f32(args.bias[next(own)]);
    const Index left = columns - column;
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) shift[i] = i < left ? value : other;
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    shift[i] = value;
    if (++column == columns) {
      column = 0;
      own = next(own);
      value = to_f32(args.bias[own]);
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
    args.row_units = output.dim(1) % kUnit<T> == 0 && (!args.by_column || on_bytes(args.bias, 16));
    args.long_rows = output.dim(1) >= kUnit<T>;
    args.activation = activation;
    const int64_t units = ceil_divide(args.elements, kUnit<T>);
    const int64_t period = args.by_column ? output.dim(1) / std::gcd(output.dim(1), int64_t{kUnit<T>}) : 1;
    args.apart = Divider(std::min(units, period * ceil_divide(kThreads, period)));
    const int64_t threads = ceil_divide(units, args.apart.divisor * kSteps) * args.apart.divisor;
    const int64_t blocks = ceil_divide(threads, kThreads);
    const auto kernel = args.elements < kSmall ? bias_kernel<T, uint32_t> : bias_kernel<T, int64_t>;
    return launch(kernel, blocks, kThreads, stream, args);
  });
}

}  // namespace lfm2::operators::gpu
