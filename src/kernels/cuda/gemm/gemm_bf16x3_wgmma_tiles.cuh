// The parts of gemm_bf16x3_wgmma.cu around the multiplication: the tiles of a cluster and their order, the tile buffers
// in shared memory, and the epilogue. The epilogue recomputes doubtful sums, then applies bias, SwiGLU and addition.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/gemm/gemm_bf16x3.cuh"
#include "kernels/cuda/gemm/gemm_tile.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2::bf16x3 {

constexpr int kCluster = 2;  // thread blocks, side by side in the columns
constexpr int kRows = 128, kColumns = 128;
constexpr int kWarpgroup = 128;  // threads
constexpr int kGroupRows = 64;   // rows of a multiplying warpgroup
constexpr int kDepth = 64;       // elements of k in one tile buffer and between roundings
constexpr int kStepDepth = 16;   // elements of k in one instruction
constexpr int kSteps = kDepth / kStepDepth;
constexpr int kBoxBytes = 128 * 128;  // every tile consists of boxes of 128 swizzled rows of 128 bytes
constexpr int kBoxFloats = 32;        // elements of k in a box of fp32
constexpr int kABoxes = kDepth / kBoxFloats;
constexpr int kSums = kGroupRows * kColumns / kWarpgroup;      // sums of a thread
constexpr int kLoaderRegisters = 40, kSplitterRegisters = 56;  // registers of a thread

static_assert(kABoxes == kCluster, "each block of a cluster loads one box for both");
static_assert(kBoxBytes % 1024 == 0 && kRows == kColumns, "a box has 128 rows of a or of w, swizzled in eights");

template <bool float_weights>
struct Shape {
  static constexpr int kWBoxes = float_weights ? 2 : 1;
  static constexpr int kBufferBoxes = kABoxes + kWBoxes;
  static constexpr int kBuffers = float_weights ? 2 : 4;
  static constexpr int kWPlanes = float_weights ? kPlanes : 1;
  static constexpr int kPlaneBuffers = float_weights ? 2 : 0;  // tile buffers of weights that were split into planes
  static constexpr int kBoxes = kBuffers * kBufferBoxes + kPlaneBuffers * kWPlanes;
  static constexpr int kSharedBytes = kBoxes * kBoxBytes + 1024;  // 1024 to align the start to 1024
  static constexpr int kWarpgroups = float_weights ? 4 : 3;
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr int kFirstMultiplier = kWarpgroups - 2;
  // Together with the other warpgroups' registers, these are all registers of an SM.
  static constexpr int kMultiplierRegisters = float_weights ? 208 : 232;
  // The number of arrivals that free a tile buffer: one for every multiplying warp of the cluster, and one for every
  // splitting warp of the block.
  static constexpr int kReaders = 2 * 4 * kCluster + (float_weights ? 4 : 0);
};

// The loop is written in PTX, because the compiler would otherwise run out of registers around it. If a bug makes the
// wait endless, it becomes a GPU fault after some seconds.
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

using ClusterTileCoord = BasicTileCoord<int>;  // of a cluster's tile: kRows rows and kCluster kColumns columns

// Calls f(place) for every tile of this cluster.
template <class F>
__device__ void for_each_tile(const GemmArgs& args, F&& f) {
  for (int64_t index = blockIdx.x / kCluster;; index += gridDim.x / kCluster) {
    const ClusterTileCoord place = find_tile<int>(args, {kRows, kCluster * kColumns}, index);
    if (place.group < 0) return;
    f(place);
  }
}

struct Block {
  char* shared;
  Barriers* barriers;
  uint32_t rank;  // of the block in its cluster
  int blocks;     // number of tile buffers that k fills

  __device__ int first_column(const ClusterTileCoord& place) const {
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

template <class B, int size>
__device__ void add_bias(const B* bias, int columns, float (&sums)[size]) {
#pragma unroll
  for (int j = 0; j < size / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = j * 8 < columns ? to_f32(bias[j * 8 + i]) : 0;
      sums[j * 4 + i] += x;
      sums[j * 4 + i + 2] += x;
    }
}

// Writes a thread's sums. They belong to 16 pieces of 8 columns; in each the thread has two adjacent columns in two
// rows, 8 apart (SumPlaces). row0 and column0 are the first row and the first column.
template <bool float_weights>
__device__ void finish(const GemmArgs& args, const ClusterTileCoord& place, int row0, int column0,
                       float (&sums)[kSums]) {
  using W = std::conditional_t<float_weights, float, __nv_bfloat16>;
  const int n = static_cast<int>(args.n), columns = n - column0;
  redo_doubtful<W>(args, place.group, SumPlaces<kColumns / 8>{row0, place.end_row, column0}, sums);
  if (args.bias.data != nullptr)
    with_elements(args.bias, [&](const auto* bias) { add_bias(bias + column0, columns, sums); });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = row0 + half * 8;
    if (row >= place.end_row) continue;
    if (args.epilogue == Epilogue::kSwiglu) {
      float* out = static_cast<float*>(args.out) + row * (n / 2) + column0 / 16 * 8 + column0 % 8;
#pragma unroll
      for (int j = 0; j < kSums / 8; ++j) {
        const float* gate = sums + j * 8 + half * 2;
        const float* up = gate + 4;
        if (j * 16 < columns)
          *reinterpret_cast<float2*>(out + j * 8) = {swiglu(gate[0], up[0]), swiglu(gate[1], up[1])};
      }
      continue;
    }
    float* out = static_cast<float*>(args.out) + row * n + column0;
    constexpr int kTogether = 8;  // number of loads in flight
#pragma unroll
    for (int first = 0; first < kSums / 4; first += kTogether) {
      if (args.epilogue == Epilogue::kAdd) {
        float2 old[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j)
          old[j] = (first + j) * 8 < columns ? *reinterpret_cast<const float2*>(out + (first + j) * 8) : float2{};
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          sums[(first + j) * 4 + half * 2] += old[j].x;
          sums[(first + j) * 4 + half * 2 + 1] += old[j].y;
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if ((first + j) * 8 < columns)
          *reinterpret_cast<float2*>(out + (first + j) * 8) = {sums[(first + j) * 4 + half * 2],
                                                               sums[(first + j) * 4 + half * 2 + 1]};
    }
  }
}

}  // namespace lfm2::bf16x3
