// reduce for dense rows that are not whole units: a block copies many rows to shared memory in units, whatever their
// addresses, and its threads combine the rows there.
#pragma once

#include "operators/cuda/reduce.cuh"

namespace lfm2::operators::gpu {

// Stages `count` elements from `from` on, as the units of memory that contain them. Returns the first element's index
// in `staged`.
template <class T>
__device__ int stage(const T* from, int count, const WholeUnits& memory, uint4* staged) {
  const int shift = misaligned<T>(from), units = (shift + count + kUnit<T> - 1) / kUnit<T>;
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kThreads) {
    const int first = unit * kUnit<T> - shift;  // may be negative: elements before `from`
    if (memory.holds(from + first)) {
      copy_unit(staged + unit, from + first);
      continue;
    }
    T* to = reinterpret_cast<T*>(staged + unit);
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i)
      if (first + i >= 0 && first + i < count) to[i] = from[first + i];
  }
  wait_for_copies();
  return shift;
}

// - operands: input: dense rows, args.reduced.inner elements each; out args.target: the output, or partial results
//   [slices, outputs] fp32.
// - block: args.rows rows, which it stages in shared memory.
// - thread: every lanes-th element of a row, of which every kChains-th goes into the same sum. kSamples: an output
//   combines several rows, a slice has some of them, and a thread has one output.
// - alignment: any.
template <class Op, class T, bool kSamples>
__global__ void __launch_bounds__(kThreads) reduce_staged_kernel(const __grid_constant__ Reduction<T, T> args) {
  constexpr int kChains = 4;
  __shared__ uint4 staged[kStagedBytes / 16 + 1];  // one unit more, as a row may begin within a unit
  const int bits = __ffs(args.lanes) - 1, lane = static_cast<int>(threadIdx.x) & (args.lanes - 1);
  const int group = static_cast<int>(threadIdx.x) >> bits, groups = kThreads >> bits;
  const uint32_t slice = args.blocks_across.quotient(static_cast<uint32_t>(blockIdx.x));
  const int64_t block = blockIdx.x - slice * static_cast<uint32_t>(args.blocks_across.divisor);
  const int64_t first_row = block * args.rows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(args.rows), args.outputs - first_row));
  const int length = static_cast<int>(args.reduced.inner);
  const T* from = args.input + first_row * length;

  float sum[kChains];
  const auto clear = [&] {
#pragma unroll
    for (float& x : sum) x = Op::neutral();
  };
  const auto add_row = [&](int row, int shift) {
    if (row >= rows) return;
    const T* x = reinterpret_cast<const T*>(staged) + shift + row * length;
    int element = lane;
#pragma unroll 2
    for (; element + (kChains - 1) * args.lanes < length; element += kChains * args.lanes)
#pragma unroll
      for (int i = 0; i < kChains; ++i) sum[i] = Op::combine(sum[i], to_f32(x[element + i * args.lanes]));
#pragma unroll
    for (int i = 0; i < kChains; ++i)
      if (element + i * args.lanes < length) sum[i] = Op::combine(sum[i], to_f32(x[element + i * args.lanes]));
  };
  const auto store = [&](int row) {
    float values[1] = {fold<Op>(sum)};
    fold_lanes<Op>(values, args.lanes);
    if (lane != 0 || row >= rows) return;
    int64_t positions[2];
    args.kept.find(first_row + row, 1, positions);
    args.target.store(slice, args.outputs, first_row + row, positions[1], values[0]);
  };

  if constexpr (kSamples) {
    clear();
    const int64_t begin = slice * args.per_slice, end = min(begin + args.per_slice, args.steps);
    for (int64_t sample = begin; sample < end; ++sample) {
      const int shift = stage(from + sample * args.reduced.strides[0][1], rows * length, args.memory, staged);
      __syncthreads();
      add_row(group, shift);
      __syncthreads();
    }
    store(group);
  } else {
    const int shift = stage(from, rows * length, args.memory, staged);
    __syncthreads();
    for (int done = 0; done < rows; done += groups) {  // the same for all lanes of a warp
      clear();
      add_row(done + group, shift);
      store(done + group);
    }
  }
}

}  // namespace lfm2::operators::gpu
