// How the lanes of a warp, each with one assignment, find out which of them go to the same expert. For
// group_by_expert, norm_route and norm_route_swiglu.
#pragma once

#include "kernels/cuda/common/device_types.cuh"

namespace lfm2 {

// One ballot for every bit of an expert's number.
template <int kBits>
struct Ballots {
  // `expert` is that of this lane's assignment, or -1.
  __device__ explicit Ballots(int expert) : there(__ballot_sync(kAllLanes, expert >= 0)) {
#pragma unroll
    for (int b = 0; b < kBits; ++b) bits[b] = __ballot_sync(kAllLanes, ((expert >> b) & 1) != 0);
  }
  // The lanes whose assignment goes to `expert`.
  __device__ unsigned lanes(int expert) const {
    unsigned same = there;
#pragma unroll
    for (int b = 0; b < kBits; ++b) same &= ((expert >> b) & 1) != 0 ? bits[b] : ~bits[b];
    return same;
  }
  // The number of lanes before this one that go to `expert`.
  __device__ int before(int expert) const { return __popc(lanes(expert) & ((1u << (threadIdx.x % 32)) - 1)); }
  unsigned there, bits[kBits];
};

// The value of `expert`, or of any expert if that is -1. Lane l has those of experts l, l + 32, ….
template <int kSets>
__device__ int value_of(int expert, const int (&values)[kSets]) {
  int value = __shfl_sync(kAllLanes, values[0], expert & 31);
#pragma unroll
  for (int s = 1; s < kSets; ++s) {
    const int other = __shfl_sync(kAllLanes, values[s], expert & 31);
    if (expert >= 32 * s) value = other;
  }
  return value;
}

}  // namespace lfm2
