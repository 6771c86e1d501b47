// map and zip: one kernel that takes units of 16 bytes where every tensor allows it and single elements where not, and
// one that turns tiles in shared memory where an input runs fastest along another axis than the output.
#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kSteps = 4;  // units or elements of a thread

template <class T, int kInputs>
struct Elementwise {
  T* output;
  const T* inputs[kInputs];
  Loops<1 + kInputs> loops;
  int64_t count;           // steps
  bool repeated[kInputs];  // in units: an operand that is the same element for the whole innermost loop
  int function;
};

template <class T, int kCount>
__device__ void compute(int function, float (&x)[1][kCount]) {
  apply(static_cast<UnaryFunction>(function), x[0]);
}
template <class T, int kCount>
__device__ void compute(int function, float (&x)[2][kCount]) {
  apply(static_cast<BinaryFunction>(function), x[0], x[1]);
}

template <class T, int kInputs>
__global__ void __launch_bounds__(kThreads) units_kernel(const __grid_constant__ Elementwise<T, kInputs> args) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSteps * kThreads + threadIdx.x;
  Unit<T> units[kSteps][kInputs];
  int64_t targets[kSteps];
  int counts[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t ordinal = first + step * kThreads;
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
    compute<T>(args.function, x);
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

template <class T, int kInputs>
__global__ void __launch_bounds__(kThreads) elements_kernel(const __grid_constant__ Elementwise<T, kInputs> args) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSteps * kThreads + threadIdx.x;
  float x[kInputs][kSteps];
  int64_t targets[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t ordinal = first + step * kThreads;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) x[i][step] = 0;
    if (ordinal >= args.count) continue;
    int64_t positions[1 + kInputs];
    args.loops.find(ordinal, 1, positions);
    targets[step] = positions[0];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) x[i][step] = to_f32(args.inputs[i][positions[1 + i]]);
  }
  compute<T>(args.function, x);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    if (first + step * kThreads < args.count) args.output[targets[step]] = rounded<T>(x[0][step]);
}

constexpr int kTile = 64;

// Tiles of the innermost loop and of one other loop, along which turned inputs run fastest.
template <class T, int kInputs>
struct Turning {
  T* output;
  const T* inputs[kInputs];
  bool turned[kInputs];
  Loops<1 + kInputs> rest;  // all other loops
  int64_t columns, rows;    // of the innermost loop, of the other one
  int64_t column_strides[1 + kInputs], row_strides[1 + kInputs];
  Divider column_tiles, row_tiles;
  int function;
};

template <class T, int kInputs>
__global__ void __launch_bounds__(kThreads) turning_kernel(const __grid_constant__ Turning<T, kInputs> args) {
  constexpr int kRowsAtOnce = kThreads / kTile, kEach = kTile / kRowsAtOnce;
  // An odd number of 4-byte words in a row keeps columns out of one bank; for 2-byte elements 33 words.
  __shared__ T tiles[kInputs][kTile][kTile + (sizeof(T) == 4 ? 1 : 2)];
  const int64_t tile = blockIdx.x, row_tile = args.column_tiles.quotient(tile);
  const int64_t column0 = (tile - row_tile * args.column_tiles.divisor) * kTile;
  const int64_t outer = args.row_tiles.quotient(row_tile);
  const int64_t row0 = (row_tile - outer * args.row_tiles.divisor) * kTile;
  int64_t positions[1 + kInputs];
  args.rest.find(outer, 1, positions);
  const int lane = static_cast<int>(threadIdx.x) % kTile, part = static_cast<int>(threadIdx.x) / kTile;
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    if (!args.turned[i]) continue;
    const T* from = args.inputs[i] + positions[1 + i] + (row0 + lane) * args.row_strides[1 + i];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {  // lanes along the rows: side by side in a turned input
      const int64_t column = column0 + part + j * kRowsAtOnce;
      if (row0 + lane < args.rows && column < args.columns)
        tiles[i][part + j * kRowsAtOnce][lane] = from[column * args.column_strides[1 + i]];
    }
  }
  __syncthreads();
  const int64_t column = column0 + lane;
  if (column >= args.columns) return;
#pragma unroll
  for (int j0 = 0; j0 < kEach; j0 += kSteps) {
    float x[kInputs][kSteps];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const int in_tile = part + (j0 + j) * kRowsAtOnce;
        const int64_t row = row0 + in_tile;
        x[i][j] = 0;
        if (row >= args.rows) continue;
        x[i][j] = to_f32(args.turned[i] ? tiles[i][lane][in_tile]
                                        : args.inputs[i][positions[1 + i] + row * args.row_strides[1 + i] +
                                                         column * args.column_strides[1 + i]]);
      }
    }
    compute<T>(args.function, x);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const int64_t row = row0 + part + (j0 + j) * kRowsAtOnce;
      if (row < args.rows)
        args.output[positions[0] + row * args.row_strides[0] + column * args.column_strides[0]] = rounded<T>(x[0][j]);
    }
  }
}

// The loop along which some input runs one by one while the output and its own innermost step do not; 0 where there is
// none.
template <int kOperands>
int turned_loop(const Walk<kOperands>& walk) {
  constexpr int64_t kWorthIt = 16;
  if (walk.rank < 2 || walk.strides[0][0] != 1 || walk.dims[0] < kWorthIt) return 0;
  for (int operand = 1; operand < kOperands; ++operand) {
    if (walk.strides[operand][0] == 1 || walk.strides[operand][0] == 0) continue;
    for (int loop = 1; loop < walk.rank; ++loop)
      if (walk.strides[operand][loop] == 1 && walk.dims[loop] >= kWorthIt) return loop;
  }
  return 0;
}

template <class T, int kInputs>
Status launch_turning(int function, T* output, const T* const (&inputs)[kInputs], const Walk<1 + kInputs>& walk,
                      int row_loop, void* stream) {
  constexpr int kOperands = 1 + kInputs;
  Walk<kOperands> rest;
  for (int loop = 1; loop < walk.rank; ++loop) {
    if (loop == row_loop) continue;
    rest.dims[rest.rank] = walk.dims[loop];
    for (int i = 0; i < kOperands; ++i) rest.strides[i][rest.rank] = walk.strides[i][loop];
    ++rest.rank;
  }
  Turning<T, kInputs> args{output, {}, {},      Loops<kOperands>(rest, 1), walk.dims[0], walk.dims[row_loop], {}, {},
                           {},     {}, function};
  for (int i = 0; i < kInputs; ++i) {
    args.inputs[i] = inputs[i];
    args.turned[i] = walk.strides[1 + i][row_loop] == 1 && walk.strides[1 + i][0] != 1 && walk.strides[1 + i][0] != 0;
  }
  for (int i = 0; i < kOperands; ++i) {
    args.column_strides[i] = walk.strides[i][0];
    args.row_strides[i] = walk.strides[i][row_loop];
  }
  args.column_tiles = Divider(ceil_divide(args.columns, kTile));
  args.row_tiles = Divider(ceil_divide(args.rows, kTile));
  const int64_t blocks = args.column_tiles.divisor * args.row_tiles.divisor * rest.numel();
  return launch(turning_kernel<T, kInputs>, blocks, kThreads, stream, args);
}

template <class T, int kInputs>
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
      return launch_turning<T, kInputs>(function, output, inputs, walk, loop, stream);

  Elementwise<T, kInputs> args{output, {}, Loops<1 + kInputs>(walk, units ? kUnit<T> : 1), 0, {}, function};
  args.count = args.loops.count();
  for (int i = 0; i < kInputs; ++i) {
    args.inputs[i] = inputs[i];
    args.repeated[i] = repeated[i];
  }
  const int64_t blocks = ceil_divide(args.count, int64_t{kThreads} * kSteps);
  return launch(units ? units_kernel<T, kInputs> : elements_kernel<T, kInputs>, blocks, kThreads, stream, args);
}

}  // namespace

Status map(UnaryFunction function, const TensorView& input, const TensorView& output, const Walk<2>& walk,
           void* stream) {
  const OnDevice on_device(output.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(output.dtype, [&](auto zero) {
    return run<decltype(zero), 1>(static_cast<int>(function), output.data, {input.data}, walk, stream);
  });
}

Status zip(BinaryFunction function, const TensorView& a, const TensorView& b, const TensorView& output,
           const Walk<3>& walk, void* stream) {
  const OnDevice on_device(output.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(output.dtype, [&](auto zero) {
    return run<decltype(zero), 2>(static_cast<int>(function), output.data, {a.data, b.data}, walk, stream);
  });
}

}  // namespace lfm2::operators::gpu
