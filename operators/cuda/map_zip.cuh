// map and zip. One kernel processes units of 16 bytes if every tensor allows it, another single elements. The launcher
// chooses between these and the kernels of turning.cuh. Each family of functions is compiled in a separate file:
// map.cu, map_trigonometric.cu, zip.cu.
#pragma once

#include "operators/cuda/turning.cuh"

namespace lfm2::operators::gpu {

constexpr int kSteps = 4;  // number of units or elements of a thread

// The map of sine and cosine. The tensors' device must be the current one.
Status map_trigonometric(UnaryFunction function, const TensorView& input, const TensorView& output, const Walk<2>& walk,
                         void* stream);

template <class T, int kInputs>
struct Elementwise {
  T* output;
  const T* inputs[kInputs];
  Loops<1 + kInputs> loops;
  int64_t count;           // number of steps, below kSmall
  bool repeated[kInputs];  // for units_kernel: the input repeats one element in the innermost loop
  int function;
};

// - operands: args.inputs and args.output, walked through by args.loops.
// - block: kThreads units in kSteps steps.
// - thread: kSteps units of kUnit elements of the innermost loop, kThreads apart; the last unit of a loop may have
//   fewer.
// - alignment: units on 16 bytes in every tensor, except inputs that are repeated along the innermost loop.
template <class T, int kInputs, Family family>
__global__ void __launch_bounds__(kThreads) units_kernel(const __grid_constant__ Elementwise<T, kInputs> args) {
  const uint32_t first = blockIdx.x * (kSteps * kThreads) + threadIdx.x;
  Unit<T> units[kSteps][kInputs];
  int64_t targets[kSteps];
  int counts[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t ordinal = first + step * kThreads;
    counts[step] = 0;
    if (ordinal >= args.count) continue;
    int64_t positions[1 + kInputs];
    const int64_t place = args.loops.find(ordinal, kUnit<T>, positions);
    targets[step] = positions[0];
    counts[step] = static_cast<int>(min(static_cast<int64_t>(kUnit<T>), args.loops.inner - place));
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const T* from = args.inputs[i] + positions[1 + i];
      if (args.repeated[i]) {
        units[step][i].elements[0] = *from;
      } else if (counts[step] == kUnit<T>) {
        units[step][i].bits = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll
        for (int j = 0; j < kUnit<T>; ++j)
          if (j < counts[step]) units[step][i].elements[j] = from[j];
      }
    }
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (counts[step] == 0) return;
    float x[kInputs][kUnit<T>];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      if (args.repeated[i]) {
#pragma unroll
        for (int j = 0; j < kUnit<T>; ++j) x[i][j] = to_f32(units[step][i].elements[0]);
      } else {
        unpack(units[step][i], x[i]);
      }
    }
    compute<T, family>(args.function, x);
    pack(x[0], units[step][0]);
    T* target = args.output + targets[step];
    if (counts[step] == kUnit<T>) {
      *reinterpret_cast<uint4*>(target) = units[step][0].bits;
    } else {
#pragma unroll
      for (int j = 0; j < kUnit<T>; ++j)
        if (j < counts[step]) target[j] = units[step][0].elements[j];
    }
  }
}

// - operands: args.inputs and args.output, walked through by args.loops.
// - block: kThreads elements in kSteps steps.
// - thread: kSteps elements, kThreads apart.
// - alignment: any.
template <class T, int kInputs, Family family>
__global__ void __launch_bounds__(kThreads) elements_kernel(const __grid_constant__ Elementwise<T, kInputs> args) {
  const uint32_t first = blockIdx.x * (kSteps * kThreads) + threadIdx.x;
  float x[kInputs][kSteps];
  int64_t targets[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t ordinal = first + step * kThreads;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) x[i][step] = 0;
    if (ordinal >= args.count) continue;
    int64_t positions[1 + kInputs];
    args.loops.find(ordinal, 1, positions);
    targets[step] = positions[0];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) x[i][step] = to_f32(args.inputs[i][positions[1 + i]]);
  }
  compute<T, family>(args.function, x);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    if (first + step * kThreads < args.count) args.output[targets[step]] = rounded<T>(x[0][step]);
}

// Computes the walk's elements with the kernel that fits its tensors. If 32 bits cannot count the steps, it makes
// several launches.
template <class T, int kInputs, Family family>
Status run(int function, void* output_data, const void* const (&input_data)[kInputs], const Walk<1 + kInputs>& walk,
           void* stream) {
  T* output = static_cast<T*>(output_data) + walk.start[0];
  const T* inputs[kInputs];
  for (int i = 0; i < kInputs; ++i) inputs[i] = static_cast<const T*>(input_data[i]) + walk.start[1 + i];

  bool units = in_units(walk, 0, output_data, kUnit<T>, sizeof(T)), repeated[kInputs];
  for (int i = 0; i < kInputs; ++i) {
    repeated[i] = walk.rank > 0 && walk.strides[1 + i][0] == 0;
    units = units && (repeated[i] || in_units(walk, 1 + i, input_data[i], kUnit<T>, sizeof(T)));
  }
  // Rows shorter than a unit would leave threads with little to do.
  if (walk.rank > 1 && walk.dims[0] < kUnit<T>) units = false;
  if (!units)
    if (const int loop = turned_loop(walk))
      return launch_turning<T, kInputs, family>(function, output, inputs, walk, loop, stream);

  const int unit = units ? kUnit<T> : 1;
  Elementwise<T, kInputs> args{output, {}, Loops<1 + kInputs>(walk, unit), 0, {}, function};
  args.count = args.loops.count();
  if (args.count >= kSmall) {
    const auto [first, second] = halves(walk, unit);
    STATUS_CHECK((run<T, kInputs, family>(function, output_data, input_data, first, stream)));
    return run<T, kInputs, family>(function, output_data, input_data, second, stream);
  }
  for (int i = 0; i < kInputs; ++i) {
    args.inputs[i] = inputs[i];
    args.repeated[i] = repeated[i];
  }
  const int64_t blocks = ceil_divide(args.count, int64_t{kThreads} * kSteps);
  return launch(units ? units_kernel<T, kInputs, family> : elements_kernel<T, kInputs, family>, blocks, kThreads,
                stream, args);
}

}  // namespace lfm2::operators::gpu
