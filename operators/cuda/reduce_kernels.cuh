// The kernels of reduce: in two of them lanes lie along the reduced axis, in one across it. The latter also reduces the
// partial results of slices. Only the plan determines the order of combination, by lanes and slices; it never depends
// on which thread is first. Each function is compiled in a separate file such as reduce_sum.cu.
#pragma once

#include "operators/cuda/reduce_staged.cuh"

namespace lfm2::operators::gpu {

// Loads unit `ordinal` of an output's elements, which begin at `from`.
template <Reading reading, class In, class T>
__device__ void fetch_along(const Reduction<In, T>& args, const In* from, IndexFor<reading> ordinal,
                            Fetched<reading, In>& unit) {
  int64_t position[1];
  const int64_t place = args.reduced.find(ordinal, kUnit<In>, position);
  const int count = static_cast<int>(min(static_cast<int64_t>(kUnit<In>), args.reduced.inner - place));
  unit.fetch(from + position[0], args.reduced.strides[0][0], count, args.memory);
}

// Computes a lane's sums from units of memory. The first unit of memory begins before the first element, so a thread
// computes sums that belong to another lane or to other elements of the unit. Each sum still combines the same elements
// in the same order, and is then moved to its lane and element.
template <class Op, class In, class T>
__device__ void sum_memory(const Reduction<In, T>& args, const In* from, int count, int lane, float (&sum)[kUnit<In>]) {
  __shared__ float exchanged[kUnit<In>][kThreads];
  const int shift = misaligned<In>(from), last = shift + count;
  const int units = count > 0 ? (last + kUnit<In> - 1) / kUnit<In> : 0;
  walk_through<Op, Reading::kMemory, In>(
      static_cast<uint32_t>(lane), static_cast<uint32_t>(units), static_cast<uint32_t>(args.lanes), sum,
      [&](uint32_t ordinal, Fetched<Reading::kMemory, In>& unit) {
        const int place = static_cast<int>(ordinal) * kUnit<In>;
        unit.fetch_memory(from - shift + place, shift - place, last - place, args.memory);
      });
  const int thread = static_cast<int>(threadIdx.x), mask = args.lanes * kUnit<In> - 1;
#pragma unroll
  for (int i = 0; i < kUnit<In>; ++i) {
    const int number = (lane * kUnit<In> + i - shift) & mask;
    exchanged[number % kUnit<In>][thread - lane + number / kUnit<In>] = sum[i];
  }
  if (args.lanes > 32)
    __syncthreads();
  else
    __syncwarp();
#pragma unroll
  for (int i = 0; i < kUnit<In>; ++i) sum[i] = exchanged[i][thread];
}

// - operands: input, walked through by args.kept and args.reduced; out args.target: the output, or partial results
//   [slices, outputs] fp32.
// - block: kThreads / lanes outputs of one slice.
// - thread: every lanes-th unit along the reduced loops of one output; then the lanes' sums are folded: within a
//   warp, and where lanes is 256, over the warps.
// - alignment: see Reading.
template <class Op, Reading reading, class In, class T>
__global__ void __launch_bounds__(kThreads, reading == Reading::kMemory ? 4 : 3)
    reduce_rows_kernel(const __grid_constant__ Reduction<In, T> args) {
  using Index = IndexFor<reading>;
  __shared__ float warps[kThreads / 32];
  const int bits = __ffs(args.lanes) - 1, lane = static_cast<int>(threadIdx.x) & (args.lanes - 1);
  const uint32_t slice = args.blocks_across.quotient(static_cast<uint32_t>(blockIdx.x));
  const int64_t block = blockIdx.x - slice * static_cast<uint32_t>(args.blocks_across.divisor);
  const int64_t output = block * (kThreads >> bits) + (threadIdx.x >> bits);
  const bool mine = output < args.outputs;
  int64_t positions[2] = {0, 0};
  if (mine) args.kept.find(static_cast<Index>(output), 1, positions);
  const In* from = args.input + positions[0];
  const int64_t begin = slice * args.per_slice, end = mine ? min(begin + args.per_slice, args.steps) : 0;
  float sum[kUnit<In>];
#pragma unroll
  for (float& x : sum) x = Op::neutral();
  if constexpr (reading == Reading::kMemory) {
    const In* first = from + begin * kUnit<In>;
    const auto count = static_cast<int>(mine ? min(end * kUnit<In>, args.reduced.inner) - begin * kUnit<In> : 0);
    sum_memory<Op>(args, first, count, lane, sum);
  } else {
    walk_through<Op, reading, In>(
        static_cast<Index>(begin + lane), static_cast<Index>(end), static_cast<Index>(args.lanes), sum,
        [&](Index ordinal, Fetched<reading, In>& unit) { fetch_along<reading>(args, from, ordinal, unit); });
  }
  float values[1] = {fold<Op>(sum)};
  fold_lanes<Op>(values, min(args.lanes, 32));
  float value = values[0];
  if (args.lanes > 32) {
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x != 0) return;
    value = warps[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) value = Op::combine(value, warps[warp]);
  }
  if (lane == 0 && mine) args.target.store(slice, args.outputs, output, positions[1], value);
}

// For outputs of which a lane has at most one unit, and one slice.
// - operands: those of reduce_rows_kernel.
// - block: kSteps kThreads / lanes outputs.
// - thread: one unit of each of kSteps outputs; a thread that has nothing to do reads what another one reads, so that
//   no load waits for a branch.
// - alignment: see Reading.
template <class Op, Reading reading, class In, class T>
__global__ void __launch_bounds__(kThreads) reduce_short_rows_kernel(const __grid_constant__ Reduction<In, T> args) {
  using Index = IndexFor<reading>;
  const int bits = __ffs(args.lanes) - 1, lane = static_cast<int>(threadIdx.x) & (args.lanes - 1);
  const Index groups = kThreads >> bits, outputs = static_cast<Index>(args.outputs);
  const Index first = static_cast<Index>(blockIdx.x) * (kSteps * groups) + (threadIdx.x >> bits);
  const bool idle = lane >= args.steps;
  int64_t position[1];
  const int64_t place = args.reduced.find(static_cast<Index>(idle ? 0 : lane), kUnit<In>, position);
  const int count = static_cast<int>(min(static_cast<int64_t>(kUnit<In>), args.reduced.inner - place));
  Fetched<reading, In> units[kSteps];
  int64_t positions[kSteps][2];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    args.kept.find(min(first + i * groups, outputs - 1), 1, positions[i]);
    units[i].fetch(args.input + positions[i][0] + position[0], args.reduced.strides[0][0], count, args.memory);
  }
  float values[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    float x[kUnit<In>];
    units[i].template get<Op>(x);
    values[i] = idle ? Op::neutral() : fold<Op>(x);
  }
  fold_lanes<Op>(values, args.lanes);
  if (lane != 0) return;
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (first + i * groups < outputs) args.target.store(positions[i][1], values[i]);
}

// - operands: those of reduce_rows_kernel.
// - block: `lanes` units of outputs side by side, of one slice.
// - thread: of one unit every (kThreads / lanes)-th element along the reduced loops; then the threads' sums are
//   folded in shared memory.
// - alignment: see Reading.
template <class Op, Reading reading, class In, class T>
__global__ void __launch_bounds__(kThreads) reduce_columns_kernel(const __grid_constant__ Reduction<In, T> args) {
  using Index = IndexFor<reading>;
  __shared__ float sums[kUnit<In>][kThreads];
  const uint32_t slice = args.blocks_across.quotient(static_cast<uint32_t>(blockIdx.x));
  const int64_t block = blockIdx.x - slice * static_cast<uint32_t>(args.blocks_across.divisor);
  const int rows = kThreads / args.lanes, row = static_cast<int>(threadIdx.x) / args.lanes;
  const int64_t unit = block * args.lanes + (static_cast<int>(threadIdx.x) - row * args.lanes);
  const int64_t outer = args.kept.steps[0].quotient(unit);
  const bool mine = row < rows && outer * args.kept.inner < args.outputs;
  int64_t positions[2] = {0, 0};
  const int64_t place = mine ? args.kept.find(unit, kUnit<In>, positions) : 0;
  const int count = mine ? static_cast<int>(min(static_cast<int64_t>(kUnit<In>), args.kept.inner - place)) : 0;
  const int64_t begin = slice * args.per_slice, end = mine ? min(begin + args.per_slice, args.steps) : 0;
  const In* from = args.input + positions[0];
  float sum[kUnit<In>];
#pragma unroll
  for (float& x : sum) x = Op::neutral();
  // The last one of folded rows may end before this unit does.
  const In* const last = from + (end - 1) * args.reduced.strides[0][0];
  const bool cut = args.folded && mine && end == args.steps && args.end - last < count;
  walk_through<Op, reading, In>(static_cast<Index>(begin + row), static_cast<Index>(cut ? end - 1 : end),
                                static_cast<Index>(rows), sum, [&](Index element, Fetched<reading, In>& fetched) {
                                  int64_t position[1];
                                  args.reduced.find(element, 1, position);
                                  fetched.fetch(from + position[0], args.kept.strides[0][0], count, args.memory);
                                });
  if (cut && (end - 1 - begin) % rows == row) {
#pragma unroll
    for (int i = 0; i < kUnit<In>; ++i)
      if (last + i < args.end) sum[i] = Op::combine(sum[i], to_f32(last[i]));
  }
#pragma unroll
  for (int i = 0; i < kUnit<In>; ++i) sums[i][threadIdx.x] = sum[i];
  for (int left = rows, half; left > 1; left = half) {
    half = (left + 1) / 2;
    __syncthreads();
    if (row + half >= left) continue;
#pragma unroll
    for (int i = 0; i < kUnit<In>; ++i) {
      sum[i] = Op::combine(sum[i], sums[i][threadIdx.x + half * args.lanes]);
      sums[i][threadIdx.x] = sum[i];
    }
  }
  if (row != 0) return;
#pragma unroll
  for (int i = 0; i < kUnit<In>; ++i)
    if (i < count)
      args.target.store(slice, args.outputs, outer * args.kept.inner + place + i,
                        positions[1] + i * args.kept.strides[1][0], sum[i]);
}

// The second stage (kSecond) always goes by columns; its partial results lie side by side, and 32 bits count them.
template <class Op, class In, class T, bool kSecond>
Status launch_stage(const ReducePlan& plan, const Target<T>& target, void* stream) {
  Reduction<In, T> args{static_cast<const In*>(plan.input) + plan.kept.start[0] + plan.reduced.start[0],
                        target,
                        Loops<2>(plan.kept, plan.rows ? 1 : kUnit<In>),
                        Loops<1>(plan.reduced, plan.rows && plan.staged == 0 ? kUnit<In> : 1),
                        plan.outputs,
                        0,
                        plan.per_slice,
                        Divider(),
                        plan.lanes};
  args.steps = plan.length == 0 ? 0 : args.reduced.count();
  const auto even = [](const int64_t* numbers, int from, int rank) {
    bool fits = true;
    for (int loop = from; loop < rank; ++loop) fits = fits && numbers[loop] % kUnit<In> == 0;
    return fits;
  };
  int64_t reach = 1;  // tidy() leaves no stride negative
  for (int loop = 0; loop < plan.reduced.rank; ++loop)
    reach += plan.reduced.strides[0][loop] * (plan.reduced.dims[loop] - 1);
  for (int loop = 0; loop < plan.kept.rank; ++loop) reach += plan.kept.strides[0][loop] * (plan.kept.dims[loop] - 1);
  args.folded = plan.fold > 1;
  args.end = args.input + (args.folded ? plan.length * (plan.outputs / plan.fold) : reach);
  args.memory = WholeUnits(args.input, args.end);
  // A kernel may count kSteps blocks beyond the end before it compares, and must not reach kSmall even then.
  const bool small = args.steps < kSmall - 4 * kSteps * kThreads && args.outputs < kSmall;
  bool side_by_side, whole;
  if (plan.rows) {
    side_by_side = plan.reduced.rank > 0 && plan.reduced.strides[0][0] == 1;
    whole = side_by_side && plan.reduced.dims[0] % kUnit<In> == 0 &&
            even(plan.reduced.strides[0], 1, plan.reduced.rank) && even(plan.kept.strides[0], 0, plan.kept.rank);
  } else {
    side_by_side = plan.kept.strides[0][0] == 1;
    whole = side_by_side && plan.kept.dims[0] % kUnit<In> == 0 && even(plan.kept.strides[0], 1, plan.kept.rank) &&
            even(plan.reduced.strides[0], 0, plan.reduced.rank);
  }
  whole = whole && small && on_bytes(args.input, 16);
  constexpr auto kWhole = Reading::kWhole, kShifted = Reading::kShifted;
  auto kernel = whole ? reduce_columns_kernel<Op, kWhole, In, T> : reduce_columns_kernel<Op, kShifted, In, T>;
  int64_t across = ceil_divide(args.kept.count(), plan.lanes);
  if constexpr (!kSecond) {
    constexpr auto kMemory = Reading::kMemory, kScattered = Reading::kScattered;
    const auto pick = [&](auto if_whole, auto if_shifted, auto if_scattered) {
      return whole ? if_whole : side_by_side && small ? if_shifted : if_scattered;
    };
    kernel = pick(kernel, kernel, reduce_columns_kernel<Op, kScattered, In, T>);
    if (plan.staged > 0) {
      args.rows = static_cast<int>(plan.staged);
      args.steps = plan.reduced.rank > 1 ? plan.reduced.dims[1] : 1;
      across = ceil_divide(plan.outputs, plan.staged);
      kernel = plan.reduced.rank > 1 ? reduce_staged_kernel<Op, In, true> : reduce_staged_kernel<Op, In, false>;
    } else if (plan.rows) {
      const bool is_short = plan.slices == 1 && plan.lanes <= 32 && args.steps > 0 && args.steps <= plan.lanes;
      across = ceil_divide(plan.outputs, kThreads / plan.lanes * (is_short ? kSteps : 1));
      kernel =
          is_short
              ? pick(reduce_short_rows_kernel<Op, kWhole, In, T>, reduce_short_rows_kernel<Op, kShifted, In, T>,
                     reduce_short_rows_kernel<Op, kScattered, In, T>)
              : pick(reduce_rows_kernel<Op, kWhole, In, T>,
                     plan.reduced.rank == 1 && plan.per_slice < kSmall / 16 ? reduce_rows_kernel<Op, kMemory, In, T>
                                                                            : reduce_rows_kernel<Op, kShifted, In, T>,
                     reduce_rows_kernel<Op, kScattered, In, T>);
    }
  }
  args.blocks_across = Divider(across);
  return launch(kernel, across * plan.slices, kThreads, stream, args);
}

// A reduction by one function to elements of type T: one stage, or one and a second one over its partial results.
template <class Op, class T>
Status run(const ReducePlan& plan, void* workspace, void* stream) {
  const float divisor = plan.function == ReduceFunction::kMean ? static_cast<float>(plan.length) : 1.0f;
  auto* output = static_cast<T*>(plan.output) + plan.kept.start[1];
  if (plan.workspace_bytes() == 0)
    return launch_stage<Op, T, T, false>(plan, Target<T>{nullptr, output, divisor}, stream);
  auto* partials = static_cast<float*>(workspace);
  STATUS_CHECK((launch_stage<Op, T, T, false>(folded(plan), Target<T>{partials, output, divisor}, stream)));
  return launch_stage<Op, float, T, true>(second_stage(plan, partials), Target<T>{nullptr, output, divisor}, stream);
}

}  // namespace lfm2::operators::gpu
