// reduce: a kernel whose lanes lie along the reduced axis and one whose lanes lie across it; partial results of slices
// go through the second once more. The order of combination is the plan's: lanes and slices, never which thread is
// first.
#include <cmath>

#include "operators/cuda/launch.cuh"
#include "operators/reduce_plan.h"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kSteps = 4;  // loads of a thread in flight
constexpr unsigned kAllLanes = 0xffffffffu;

struct Sum {
  static __device__ float neutral() { return 0.0f; }
  static __device__ float combine(float a, float b) { return a + b; }
};
struct Prod {
  static __device__ float neutral() { return 1.0f; }
  static __device__ float combine(float a, float b) { return a * b; }
};
struct Max {
  static __device__ float neutral() { return -INFINITY; }
  static __device__ float combine(float a, float b) { return larger(a, b); }
};
struct Min {
  static __device__ float neutral() { return INFINITY; }
  static __device__ float combine(float a, float b) { return smaller(a, b); }
};

template <class T>
struct Target {
  float* partials;  // [slices, outputs], or null: the output
  T* output;
  float divisor;  // of the output: mean

  __device__ void store(int64_t slice, int64_t outputs, int64_t ordinal, int64_t position, float value) const {
    if (partials != nullptr)
      partials[slice * outputs + ordinal] = value;
    else
      output[position] = rounded<T>(divisor == 1.0f ? value : value / divisor);
  }
};

template <class In, class T>
struct Reduction {
  const In* input;
  Target<T> target;
  Loops<2> kept;
  Loops<1> reduced;
  int64_t outputs;
  int64_t steps;  // along the reduced axes: units in the row kernel, elements in the column kernel
  int64_t per_slice;
  Divider blocks_across;  // blocks of a slice
  int lanes;
  const In* begin = nullptr;  // of the memory that the input reaches, and its end: kShifted
  const In* end = nullptr;
};

// How a unit is read. kWhole: 16 aligned bytes, all of its elements there, and fewer than 2^31 steps. kShifted:
// elements side by side at any address. kScattered: element by element.
enum class Reading { kWhole, kShifted, kScattered };

// The unit at `from`, of which `count` elements are there.
template <class Op, Reading reading, class In>
__device__ void load(const In* from, int64_t stride, int count, const In* begin, const In* end, float (&x)[kUnit<In>]) {
  if constexpr (reading == Reading::kWhole) {
    Unit<In> unit;
    unit.bits = *reinterpret_cast<const uint4*>(from);
    return unpack(unit, x);
  }
  if (reading == Reading::kShifted && from + kUnit<In> <= end) {
    const Unit<In> unit = gather<In>(from, begin, end);
    unpack(unit, x);
    if (count == kUnit<In>) return;
#pragma unroll
    for (int i = 0; i < kUnit<In>; ++i) x[i] = i < count ? x[i] : Op::neutral();
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit<In>; ++i) x[i] = i < count ? to_f32(from[i * stride]) : Op::neutral();
}

template <class Op, int count>
__device__ void combine_all(float (&sum)[count], const float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) sum[i] = Op::combine(sum[i], x[i]);
}

// The elements of a unit by a tree, then those of neighbouring lanes.
template <class Op, int count>
__device__ float fold(float (&sum)[count], int lanes) {
#pragma unroll
  for (int half = count / 2; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) sum[i] = Op::combine(sum[i], sum[i + half]);
  float value = sum[0];
  for (int step = lanes / 2; step > 0; step /= 2) value = Op::combine(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// begin, begin + step, ... below end: kSteps loads in flight, combined in order.
template <class Op, class Index, int count, class Load>
__device__ void walk_through(Index begin, Index end, Index step, float (&sum)[count], const Load& load_at) {
  Index place = begin;
  for (; place + (kSteps - 1) * step < end; place += kSteps * step) {
    float x[kSteps][count];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) load_at(place + i * step, x[i]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) combine_all<Op>(sum, x[i]);
  }
  if (place >= end) return;
  float x[kSteps][count];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (place + i * step < end) load_at(place + i * step, x[i]);
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (place + i * step < end) combine_all<Op>(sum, x[i]);
}

// `lanes` threads to an output, or to a slice of it: a part of a warp or a block.
template <class Op, Reading reading, class In, class T>
__global__ void __launch_bounds__(kThreads) reduce_rows_kernel(const __grid_constant__ Reduction<In, T> args) {
  using Index = std::conditional_t<reading == Reading::kWhole, uint32_t, int64_t>;
  __shared__ float warps[kThreads / 32];
  const int groups = kThreads / args.lanes, lane = static_cast<int>(threadIdx.x) % args.lanes;
  const uint32_t slice = args.blocks_across.quotient(static_cast<uint32_t>(blockIdx.x));
  const int64_t block = blockIdx.x - slice * static_cast<uint32_t>(args.blocks_across.divisor);
  const int64_t output = block * groups + threadIdx.x / args.lanes;
  const bool mine = output < args.outputs;
  int64_t positions[2] = {0, 0};
  if (mine) args.kept.find(static_cast<Index>(output), 1, positions);
  const In* from = args.input + positions[0];
  const int64_t begin = slice * args.per_slice, end = mine ? min(begin + args.per_slice, args.steps) : 0;
  float sum[kUnit<In>];
#pragma unroll
  for (float& x : sum) x = Op::neutral();
  const auto load_at = [&](Index unit, float(&x)[kUnit<In>]) {
    int64_t position[1];
    const int64_t place = args.reduced.find(unit, kUnit<In>, position);
    const int count = static_cast<int>(min(static_cast<int64_t>(kUnit<In>), args.reduced.inner - place));
    load<Op, reading>(from + position[0], args.reduced.strides[0][0], count, args.begin, args.end, x);
  };
  walk_through<Op>(static_cast<Index>(begin + lane), static_cast<Index>(end), static_cast<Index>(args.lanes), sum,
                   load_at);
  float value = fold<Op>(sum, min(args.lanes, 32));
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

// `lanes` units of outputs side by side, kThreads / lanes threads to each.
template <class Op, Reading reading, class In, class T>
__global__ void __launch_bounds__(kThreads) reduce_columns_kernel(const __grid_constant__ Reduction<In, T> args) {
  using Index = std::conditional_t<reading == Reading::kWhole, uint32_t, int64_t>;
  __shared__ float sums[kUnit<In>][kThreads];
  const uint32_t slice = args.blocks_across.quotient(static_cast<uint32_t>(blockIdx.x));
  const int64_t block = blockIdx.x - slice * static_cast<uint32_t>(args.blocks_across.divisor);
  const int64_t unit = block * args.lanes + threadIdx.x % args.lanes;
  const int rows = kThreads / args.lanes, row = static_cast<int>(threadIdx.x) / args.lanes;
  const int64_t outer = args.kept.steps[0].quotient(unit);
  const bool mine = outer * args.kept.inner < args.outputs;
  int64_t positions[2] = {0, 0};
  const int64_t place = mine ? args.kept.find(unit, kUnit<In>, positions) : 0;
  const int count = mine ? static_cast<int>(min(static_cast<int64_t>(kUnit<In>), args.kept.inner - place)) : 0;
  const int64_t begin = slice * args.per_slice, end = mine ? min(begin + args.per_slice, args.steps) : 0;
  const In* from = args.input + positions[0];
  float sum[kUnit<In>];
#pragma unroll
  for (float& x : sum) x = Op::neutral();
  const auto load_at = [&](Index element, float(&x)[kUnit<In>]) {
    int64_t position[1];
    args.reduced.find(element, 1, position);
    load<Op, reading>(from + position[0], args.kept.strides[0][0], count, args.begin, args.end, x);
  };
  walk_through<Op>(static_cast<Index>(begin + row), static_cast<Index>(end), static_cast<Index>(rows), sum, load_at);
#pragma unroll
  for (int i = 0; i < kUnit<In>; ++i) sums[i][threadIdx.x] = sum[i];
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (row >= half) continue;
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

template <class Op, class In, class T>
Status launch_stage(const ReducePlan& plan, const Target<T>& target, void* stream) {
  Reduction<In, T> args{static_cast<const In*>(plan.input) + plan.kept.start[0] + plan.reduced.start[0],
                        target,
                        Loops<2>(plan.kept, plan.rows ? 1 : kUnit<In>),
                        Loops<1>(plan.reduced, plan.rows ? kUnit<In> : 1),
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
  // A step below kSmall may go beyond by kSteps blocks before it is compared.
  bool whole = on_bytes(args.input, 16) && args.steps < kSmall - 4 * kSteps * kThreads && args.outputs < kSmall;
  int64_t reach = 1;  // no stride is negative in a tidy walk
  for (int loop = 0; loop < plan.reduced.rank; ++loop)
    reach += plan.reduced.strides[0][loop] * (plan.reduced.dims[loop] - 1);
  for (int loop = 0; loop < plan.kept.rank; ++loop) reach += plan.kept.strides[0][loop] * (plan.kept.dims[loop] - 1);
  args.begin = args.input;
  args.end = args.input + reach;
  if (plan.rows) {
    whole = whole && plan.reduced.rank > 0 && plan.reduced.strides[0][0] == 1 &&
            plan.reduced.dims[0] % kUnit<In> == 0 && even(plan.reduced.strides[0], 1, plan.reduced.rank) &&
            even(plan.kept.strides[0], 0, plan.kept.rank);
    args.blocks_across = Divider(ceil_divide(plan.outputs, kThreads / plan.lanes));
  } else {
    whole = whole && plan.kept.strides[0][0] == 1 && plan.kept.dims[0] % kUnit<In> == 0 &&
            even(plan.kept.strides[0], 1, plan.kept.rank) && even(plan.reduced.strides[0], 0, plan.reduced.rank);
    args.blocks_across = Divider(ceil_divide(args.kept.count(), plan.lanes));
  }
  const bool side_by_side =
      plan.rows ? plan.reduced.rank > 0 && plan.reduced.strides[0][0] == 1 : plan.kept.strides[0][0] == 1;
  const auto pick = [&](auto rows, auto columns) { return plan.rows ? rows : columns; };
  constexpr auto kWhole = Reading::kWhole, kShifted = Reading::kShifted, kScattered = Reading::kScattered;
  const auto kernel =
      whole          ? pick(reduce_rows_kernel<Op, kWhole, In, T>, reduce_columns_kernel<Op, kWhole, In, T>)
      : side_by_side ? pick(reduce_rows_kernel<Op, kShifted, In, T>, reduce_columns_kernel<Op, kShifted, In, T>)
                     : pick(reduce_rows_kernel<Op, kScattered, In, T>, reduce_columns_kernel<Op, kScattered, In, T>);
  return launch(kernel, args.blocks_across.divisor * plan.slices, kThreads, stream, args);
}

// Over the slices of [slices, outputs]: always by columns, so that its order needs nothing but sizes.
ReducePlan second_stage(const ReducePlan& plan, const float* partials) {
  ReducePlan second = plan;
  second.dtype = DType::kF32;
  second.input = partials;
  int64_t step = 1;
  second.kept.start[0] = 0;
  for (int loop = 0; loop < second.kept.rank; ++loop) {
    second.kept.strides[0][loop] = step;
    step *= second.kept.dims[loop];
  }
  if (second.kept.rank == 0) {
    second.kept.rank = 1;
    second.kept.dims[0] = 1;
    second.kept.strides[0][0] = 1;
    second.kept.strides[1][0] = 1;
  }
  second.reduced = Walk<1>();
  add_loop<1>(second.reduced, plan.slices, {plan.outputs});
  second.length = plan.slices;
  second.rows = false;
  second.unit = kUnit<float>;
  // Few outputs: one unit a block, and many threads to each.
  const int64_t units = units_of(plan.outputs, kUnit<float>);
  second.lanes = units >= 2048 ? 32 : units >= 512 ? 8 : 1;
  second.slices = 1;
  second.per_slice = plan.slices;
  return second;
}

template <class Op, class T>
Status run(const ReducePlan& plan, void* workspace, void* stream) {
  const float divisor = plan.function == ReduceFunction::kMean ? static_cast<float>(plan.length) : 1.0f;
  auto* output = static_cast<T*>(plan.output) + plan.kept.start[1];
  if (plan.slices <= 1) return launch_stage<Op, T, T>(plan, Target<T>{nullptr, output, divisor}, stream);
  auto* partials = static_cast<float*>(workspace);
  STATUS_CHECK((launch_stage<Op, T, T>(plan, Target<T>{partials, output, divisor}, stream)));
  return launch_stage<Op, float, T>(second_stage(plan, partials), Target<T>{nullptr, output, divisor}, stream);
}

}  // namespace

Status reduce(const ReducePlan& plan, void* workspace, void* stream) {
  const OnDevice on_device(plan.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(plan.dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (plan.function) {
      case ReduceFunction::kSum:
      case ReduceFunction::kMean:
        return run<Sum, T>(plan, workspace, stream);
      case ReduceFunction::kProd:
        return run<Prod, T>(plan, workspace, stream);
      case ReduceFunction::kMax:
        return run<Max, T>(plan, workspace, stream);
      case ReduceFunction::kMin:
        return run<Min, T>(plan, workspace, stream);
      case ReduceFunction::kCount:
        break;
    }
    return Status::kInvalid;
  });
}

}  // namespace lfm2::operators::gpu
