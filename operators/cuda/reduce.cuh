// Shared by the files of reduce: functions, targets, the reading of units, and folds of fixed order.
#pragma once

#include <cmath>

#include "operators/cuda/launch.cuh"
#include "operators/reduce_plan.h"

namespace lfm2::operators::gpu {

constexpr int kThreads = 256;
constexpr int kSteps = 4;  // number of a thread's loads in flight
constexpr unsigned kAllLanes = 0xffffffffu;

// Each of these reduces by one function, on the plan's device. reduce_sum also computes the mean.
Status reduce_sum(const ReducePlan& plan, void* workspace, void* stream);
Status reduce_prod(const ReducePlan& plan, void* workspace, void* stream);
Status reduce_max(const ReducePlan& plan, void* workspace, void* stream);
Status reduce_min(const ReducePlan& plan, void* workspace, void* stream);

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
  float* partials;  // [slices, outputs], or null where results go to the output
  T* output;
  float divisor;  // divides the output: 1 or, for the mean, the number of elements

  __device__ void store(int64_t position, float value) const {
    output[position] = rounded<T>(divisor == 1.0f ? value : value / divisor);
  }
  __device__ void store(int64_t slice, int64_t outputs, int64_t ordinal, int64_t position, float value) const {
    if (partials != nullptr)
      partials[slice * outputs + ordinal] = value;
    else
      store(position, value);
  }
};

template <class In, class T>
struct Reduction {
  const In* input;
  Target<T> target;
  Loops<2> kept;
  Loops<1> reduced;
  int64_t outputs;
  int64_t steps;  // steps along the reduced axes: units in the row kernel, elements in the column kernel
  int64_t per_slice;
  Divider blocks_across;  // number of blocks of a slice
  int lanes;
  int rows = 0;  // number of staged rows of a block
  bool folded = false;
  const In* end = nullptr;  // one past the last element
  WholeUnits memory{};
};

// How a unit is read. kWhole: as 16 aligned bytes with all of its elements. kShifted: as adjacent elements at any
// address. kMemory: as 16 aligned bytes, within which adjacent elements may begin anywhere. These three are for fewer
// than 2^31 steps. kScattered: element by element.
enum class Reading { kWhole, kShifted, kMemory, kScattered };
template <Reading reading>
using IndexFor = std::conditional_t<reading == Reading::kScattered, int64_t, uint32_t>;

// A unit that is being loaded. Its elements `first` to `count` - 1 exist.
template <Reading reading, class In>
struct Fetched {
  std::conditional_t<reading == Reading::kShifted, Shifted<In>, Unit<In>> unit;
  int first = 0, count;

  __device__ void fetch(const In* from, int64_t stride, int there, const WholeUnits& memory) {
    count = there;
    if constexpr (reading == Reading::kWhole) {
      unit.bits = *reinterpret_cast<const uint4*>(from);
    } else if constexpr (reading == Reading::kShifted) {
      unit.fetch(from, 0, count, memory.holds_two(from));
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<In>; ++i)
        if (i < count) unit.elements[i] = from[i * stride];
    }
  }
  __device__ void fetch_memory(const In* from, int from_first, int to, const WholeUnits& memory) {
    first = max(from_first, 0);
    count = min(to, kUnit<In>);
    if (memory.holds(from)) {
      unit.bits = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<In>; ++i)
        if (i >= first && i < count) unit.elements[i] = from[i];
    }
  }
  template <class Op>
  __device__ void get(float (&x)[kUnit<In>]) const {
    if constexpr (reading == Reading::kShifted)
      unpack(unit.get(0, count), x);
    else
      unpack(unit, x);
    if constexpr (reading != Reading::kWhole) {
      if (first == 0 && count == kUnit<In>) return;
#pragma unroll
      for (int i = 0; i < kUnit<In>; ++i) x[i] = i >= first && i < count ? x[i] : Op::neutral();
    }
  }
};

template <class Op, int count>
__device__ void combine_all(float (&sum)[count], const float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) sum[i] = Op::combine(sum[i], x[i]);
}

// Combines the elements of a unit as a tree.
template <class Op, int count>
__device__ float fold(float (&x)[count]) {
#pragma unroll
  for (int half = count / 2; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) x[i] = Op::combine(x[i], x[i + half]);
  return x[0];
}
// Combines the values of neighbouring lanes.
template <class Op, int count>
__device__ void fold_lanes(float (&values)[count], int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2)
#pragma unroll
    for (float& value : values) value = Op::combine(value, __shfl_xor_sync(kAllLanes, value, step));
}

// Combines the units begin, begin + step, ... below end, in order, with kSteps loads in flight.
template <class Op, Reading reading, class In, class Fetch>
__device__ void walk_through(IndexFor<reading> begin, IndexFor<reading> end, IndexFor<reading> step,
                             float (&sum)[kUnit<In>], const Fetch& fetch) {
  Fetched<reading, In> units[kSteps];
  float x[kUnit<In>];
  auto place = begin;
  for (; place + (kSteps - 1) * step < end; place += kSteps * step) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) fetch(place + i * step, units[i]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      units[i].template get<Op>(x);
      combine_all<Op>(sum, x);
    }
  }
  if (place >= end) return;
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (place + i * step < end) fetch(place + i * step, units[i]);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (place + i * step >= end) return;
    units[i].template get<Op>(x);
    combine_all<Op>(sum, x);
  }
}

}  // namespace lfm2::operators::gpu
