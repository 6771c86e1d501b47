// The parts of gemm_planes_wgmma.cu around the multiplication: the tiles of a cluster, the order in which they come,
// and the tile buffers of shared memory that they pass through.
#pragma once

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/gemm/gemm_planes.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2::planes {

constexpr int kCluster = 2;  // thread blocks, side by side
constexpr int kRows = 128, kColumns = 128;
constexpr int kWarpgroup = 128;  // threads
constexpr int kGroupRows = 64;   // rows of a multiplying warpgroup
constexpr int kDepth = 64;       // elements of k in one tile buffer and between roundings
constexpr int kStepDepth = 16;   // elements of k in one instruction
constexpr int kSteps = kDepth / kStepDepth;
constexpr int kBoxBytes = 128 * 128;  // every tile is made of boxes, which have 128 swizzled rows of 128 bytes
constexpr int kBoxFloats = 32;        // elements of k in a box of fp32
constexpr int kABoxes = kDepth / kBoxFloats;
constexpr int kSums = kGroupRows * kColumns / kWarpgroup;      // sums of a thread
constexpr int kLoaderRegisters = 40, kSplitterRegisters = 56;  // registers of a thread

static_assert(kABoxes == kCluster, "each block of a cluster loads one box for both");

template <bool float_weights>
struct Shape {
  static constexpr int kWBoxes = float_weights ? 2 : 1;
  static constexpr int kBufferBoxes = kABoxes + kWBoxes;
  static constexpr int kBuffers = float_weights ? 2 : 4;
  static constexpr int kWPlanes = float_weights ? kPlanes : 1;
  static constexpr int kPlaneBuffers = float_weights ? 2 : 0;  // tile buffers of weights that were split into planes
  static constexpr int kBoxes = kBuffers * kBufferBoxes + kPlaneBuffers * kWPlanes;
  static constexpr int kSharedBytes = kBoxes * kBoxBytes + 1024;  // 1024 to start on 1024
  static constexpr int kWarpgroups = float_weights ? 4 : 3;
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kFirstMultiplier = kWarpgroups - 2;
  // With those of the other warpgroups, these are all registers of a multiprocessor.
  static constexpr int kMultiplierRegisters = float_weights ? 208 : 232;
  // The number of arrivals that free a tile buffer: one of every multiplying warp of the cluster, and one of every
  // splitting warp of the block.
  static constexpr int kReaders = 2 * 4 * kCluster + (float_weights ? 4 : 0);
};

// The loop is written in PTX, because the compiler would otherwise run out of registers around it. A wait that a bug
// makes endless becomes a GPU fault after some seconds.
__device__ inline void wait_for(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done, on;\n.reg .u32 tries;\nmov.u32 tries, 0;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra came;\n"
      "add.u32 tries, tries, 1;\nsetp.lt.u32 on, tries, 16777216;\n@on bra again;\ntrap;\ncame:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

struct Barriers {
  uint64_t full[4], free[4];  // one for each tile buffer
  uint64_t planes_full[2], planes_free[2];
};

// The next tile buffer of a ring, and the parity of this round through the ring.
template <int buffers>
struct Turn {
  int buffer = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++buffer == buffers) buffer = 0, parity ^= 1;
  }
};

// One tile of a cluster: kRows rows and 2 kColumns columns.
struct Place {
  int first_row, end_row;  // end_row is the group's end, not the tile's
  int first_column;
  int group;  // -1: there is no such tile
};

// Tiles are counted group by group, then by columns, 2 kColumns at a time, then row by row, so that clusters that run
// together share columns of w. Every warp finds the place by itself, with a prefix sum over the groups, 32 at a time.
__device__ inline Place find_place(const GemmArgs& args, int64_t index) {
  const int columns = static_cast<int>((args.n + kCluster * kColumns - 1) / (kCluster * kColumns));
  const auto tiles_of = [](int rows) { return (rows + kRows - 1) / kRows; };
  const auto place_in = [&](int first_row, int end_row, int local, int group) {
    const int rows = tiles_of(end_row - first_row);
    return Place{first_row + local % rows * kRows, end_row, local / rows * kCluster * kColumns, group};
  };
  if (args.offsets == nullptr) {
    const int m = static_cast<int>(args.m);
    if (index >= int64_t{tiles_of(m)} * columns) return {0, 0, 0, -1};
    return place_in(0, m, static_cast<int>(index), 0);
  }
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < args.groups; base += 32) {
    const bool real = base + lane < args.groups;
    const int first = real ? args.offsets[base + lane] : 0, end = real ? args.offsets[base + lane + 1] : 0;
    const int64_t tiles = int64_t{tiles_of(end - first)} * columns;
    int64_t upto = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int64_t left = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto += left;
    }
    const unsigned reached = __ballot_sync(0xffffffffu, upto > index);
    if (reached != 0) {
      const int owner = __ffs(reached) - 1;
      const auto local = static_cast<int>(index - __shfl_sync(0xffffffffu, upto - tiles, owner));
      return place_in(__shfl_sync(0xffffffffu, first, owner), __shfl_sync(0xffffffffu, end, owner), local,
                      base + owner);
    }
    index -= __shfl_sync(0xffffffffu, upto, 31);
  }
  return {0, 0, 0, -1};
}

// Calls f(place) for every tile of this cluster.
template <class F>
__device__ void for_each_tile(const GemmArgs& args, F&& f) {
  for (int64_t index = blockIdx.x / kCluster;; index += gridDim.x / kCluster) {
    const Place place = find_place(args, index);
    if (place.group < 0) return;
    f(place);
  }
}

struct Block {
  char* shared;
  Barriers* barriers;
  uint32_t rank;  // of the block in its cluster
  int blocks;     // number of tile buffers that k fills

  __device__ int first_column(const Place& place) const {
    return place.first_column + static_cast<int>(rank) * kColumns;
  }
};

template <bool float_weights>
__device__ char* buffer_of(const Block& block, int buffer) {
  return block.shared + buffer * Shape<float_weights>::kBufferBoxes * kBoxBytes;
}
template <bool float_weights>
__device__ char* planes_of(const Block& block, int buffer) {
  using S = Shape<float_weights>;
  return block.shared + (S::kBuffers * S::kBufferBoxes + buffer * S::kWPlanes) * kBoxBytes;
}

}  // namespace lfm2::planes
