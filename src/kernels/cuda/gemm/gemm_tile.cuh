// Which tile of which group's product a thread block computes, and the epilogue that turns sums into output. Shared by
// the GEMM kernels.
#pragma once

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/ptx/mma.cuh"

namespace lfm2 {

template <class Int>
struct BasicTileCoord {
  Int first_row, end_row;  // rows of a and out; end_row is the group's end, not the tile's
  Int first_column;
  Int group;  // -1: there is no such tile
};
using TileCoord = BasicTileCoord<int64_t>;

// Tiles are numbered group by group, then column by column, then row by row, so that blocks that run together share the
// same columns of w. `index` is a tile's number in that order. With one tile a block, the grid is sized for the worst
// split of the rows over the groups, and blocks past the last tile have nothing to do. Every warp finds its tile
// without the others, by a prefix sum over the groups, 32 at a time.
template <class Int = int64_t>
__device__ inline BasicTileCoord<Int> find_tile(const GemmArgs& args, GemmTile tile, int64_t index = blockIdx.x) {
  const Int columns = (static_cast<Int>(args.n) + tile.columns - 1) / tile.columns;
  const auto tiles_of = [&](auto rows) { return (rows + tile.rows - 1) / tile.rows; };
  const auto place_in = [&](Int first_row, Int end_row, Int local, Int group) {
    const Int rows = tiles_of(end_row - first_row);
    return BasicTileCoord<Int>{first_row + local % rows * tile.rows, end_row, local / rows * tile.columns, group};
  };
  if (args.offsets == nullptr) {
    const Int m = static_cast<Int>(args.m);
    if (index >= int64_t{tiles_of(m)} * columns) return {0, 0, 0, -1};
    return place_in(0, m, static_cast<Int>(index), 0);
  }
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < args.groups; base += 32) {
    const bool real = base + lane < args.groups;
    const int first = real ? args.offsets[base + lane] : 0, end = real ? args.offsets[base + lane + 1] : 0;
    const int64_t tiles = int64_t{tiles_of(end - first)} * columns, last = upto(tiles);
    const unsigned reached = __ballot_sync(kAllLanes, last > index);
    if (reached != 0) {
      const int owner = __ffs(reached) - 1;
      const auto local = static_cast<Int>(index - __shfl_sync(kAllLanes, last - tiles, owner));
      return place_in(__shfl_sync(kAllLanes, first, owner), __shfl_sync(kAllLanes, end, owner), local, base + owner);
    }
    index -= __shfl_sync(kAllLanes, last, 31);
  }
  return {0, 0, 0, -1};
}

inline unsigned tile_count(const GemmArgs& args, GemmTile tile) {
  return static_cast<unsigned>(row_tile_bound(args.m, args.groups, tile.rows) * ceil_divide(args.n, tile.columns));
}

// Loads rows [first, first + count) of a matrix [.., k] into a tile buffer, with zeros beyond `end` and beyond k.
// Without `vector`, rows do not start on 16 bytes and are loaded element by element.
template <int threads, int depth, bool vector, int count, class T>
__device__ void load_rows(char* buffer, const T* matrix, int64_t first, int64_t end, int64_t k, int64_t first_k) {
  constexpr int kRowChunks = depth / 8;            // 16-byte chunks in a row of a tile buffer
  constexpr int kLoadRows = threads / kRowChunks;  // rows that the block loads at once
  static_assert(kLoadRows % 8 == 0 && count % kLoadRows == 0, "the swizzle of a thread's chunk stays the same");
  const int chunk = threadIdx.x % kRowChunks, row0 = threadIdx.x / kRowChunks;
  const int64_t column = first_k + chunk * 8;
  const int64_t left = end - first;
  const T* source = matrix + (first + row0) * k + column;
  char* target = buffer + chunk_offset(row0, chunk, kRowChunks);
#pragma unroll
  for (int i = 0; i < count / kLoadRows; ++i) {
    const bool valid = row0 + i * kLoadRows < left;
    if constexpr (vector) {
      copy_async(shared_address(target), source, valid && column < k);
    } else {
      uint4 bits = {0, 0, 0, 0};
      T* elements = reinterpret_cast<T*>(&bits);
      for (int e = 0; e < 8; ++e)
        if (valid && column + e < k) elements[e] = source[e];
      *reinterpret_cast<uint4*>(target) = bits;
    }
    source += kLoadRows * k;
    target += kLoadRows * kRowChunks * 16;
  }
}

// out = sums + bias + (old out), rounded once, for eight columns of one row.
template <class Out>
__device__ void finish_octet(const GemmArgs& args, int64_t row, int64_t column, Octet sums, bool vector) {
  const int64_t count = args.n - column;
  Out* out = static_cast<Out*>(args.out) + row * args.n + column;
  const bool whole = vector && count >= kOctet;
  if (args.bias.data != nullptr) {
    const Octet bias = load_octet(args.bias, column, count, whole);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sums.v[i] += bias.v[i];
  }
  if (args.epilogue == Epilogue::kAdd) {
    const Octet old = load_octet(out, count, whole);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sums.v[i] += old.v[i];
  }
  store_octet(out, sums, count, whole);
}

// out = silu(gate) ∘ up, rounded once, for eight columns of one row of out [rows, n / 2].
template <class Out>
__device__ void finish_swiglu(const GemmArgs& args, int64_t row, int64_t column, const Octet& gate, const Octet& up,
                              bool vector) {
  Octet result;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) result.v[i] = swiglu(gate.v[i], up.v[i]);
  store_octet(static_cast<Out*>(args.out) + row * (args.n / 2) + column, result, kOctet, vector);
}

// Stores what mma.sync left in a warp's registers (multiply_add) into the block's sums [rows, columns] in shared
// memory.
template <int stride, int row_pieces, int column_pieces>
__device__ inline void stage_sums(float* staged, int warp_row, int warp_column,
                                  const float (&sums)[row_pieces][column_pieces][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < row_pieces; ++i)
#pragma unroll
    for (int j = 0; j < column_pieces; ++j) {
      float* target = staged + (warp_row + i * 16 + lane / 4) * stride + warp_column + j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(target) = {sums[i][j][0], sums[i][j][1]};
      *reinterpret_cast<float2*>(target + 8 * stride) = {sums[i][j][2], sums[i][j][3]};
    }
}

// Writes the block's sums from shared memory to out, in whole octets of rows.
template <int threads, class Out>
__device__ inline void write_staged(const GemmArgs& args, const TileCoord& place, GemmTile tile, const float* staged,
                                    int stride, bool vector) {
  static_assert(kOctet == kGateUpBlock);
  const int step = args.epilogue == Epilogue::kSwiglu ? 2 * kOctet : kOctet, row_octets = tile.columns / step;
  for (int item = threadIdx.x; item < tile.rows * row_octets; item += threads) {
    const int64_t row = place.first_row + item / row_octets;
    const int local_column = item % row_octets * step;
    const int64_t column = place.first_column + local_column;
    if (row >= place.end_row) break;
    if (column >= args.n) continue;
    const float* sums = staged + item / row_octets * stride + local_column;
    if (args.epilogue == Epilogue::kSwiglu)
      finish_swiglu<Out>(args, row, column / 2, load_octet(sums, kOctet, true), load_octet(sums + kOctet, kOctet, true),
                         vector);
    else
      finish_octet<Out>(args, row, column, load_octet(sums, kOctet, true), vector);
  }
}

// Whether finish_octet may treat rows of out, and bias, as vectors.
inline bool vector_output(const GemmArgs& args) {
  return args.n % (args.epilogue == Epilogue::kSwiglu ? 2 * kOctet : kOctet) == 0 && on_16_bytes(args.out) &&
         (args.bias.data == nullptr || on_16_bytes(args.bias.data));
}

}  // namespace lfm2
