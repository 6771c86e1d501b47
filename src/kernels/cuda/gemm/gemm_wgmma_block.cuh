// The thread block of gemm_wgmma_kernel.cuh: its warps' roles, the ring of tile buffers in its shared memory, and the
// two warps that fill the ring.
#pragma once

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/gemm/gemm_wgmma_out.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_scheduler.cuh"
#include "kernels/cuda/ptx/ring.cuh"

namespace lfm2::wgmma_tiles {

constexpr int kRowBytes = 128;  // of one piece of a tile along k: a swizzled row
template <class T>
constexpr int kDepth = kRowBytes / static_cast<int>(sizeof(T));  // elements of k in it
constexpr int kSteps = kRowBytes / 32;                           // instructions along it
constexpr int kWarpgroup = 128;                                  // threads

// The dimensions of a block, which follow from its tile.
template <WgmmaTile tile>
struct Shape {
  static constexpr int kMultipliers = (tile.transposed ? tile.columns : tile.rows) / kWgmmaGroupRows;  // warpgroups
  static constexpr int kThreads = (kMultipliers + 1) * kWarpgroup;
  static constexpr int kLoaderOfW = kMultipliers * 4, kLoaderOfA = kLoaderOfW + 1;  // warps

  // Pieces in a tile buffer. A small tile is multiplied faster than the loading warps fill a buffer, and faster than
  // its own waits and arrivals: a second piece halves the latter two.
  static constexpr int kPieces = !tile.transposed && tile.rows + tile.columns < 192 ? 2 : 1;
  static constexpr int kAPiece = tile.rows * kRowBytes, kWPiece = tile.columns * kRowBytes;  // bytes
  static constexpr int kABytes = tile.rounds ? 0 : kPieces * kAPiece, kWBytes = kPieces * kWPiece;
  static constexpr int kBufferBytes = kABytes + kWBytes;  // a comes first
  // Rows of a box of w. If the blocks of a cluster share w, each loads one box.
  static constexpr int kWBox = tile.columns / tile.cluster;

  static constexpr int kStagedBytes =
      ((tile.transposed ? tile.rows : tile.columns) > kPassColumns ? 2 : 1) * kPassBytes;  // of a warp
  static constexpr int kOutBytes = kMultipliers * 4 * kStagedBytes;
  static constexpr int kNoteBytes = 32;  // beside a tile buffer: a tile's coordinates, and the barriers full and free
  // Products of few rows wait for memory most of the time. Two blocks fit on an SM, so that the next kernel loads w
  // while this kernel ends.
  static constexpr int kBlocks = tile.rows <= kMaxDirectRows ? 2 : 1;
  static constexpr int kBytes =
      (kBlocks > 1 ? 112 : 227) * 1024 - 1024;  // without the bytes that align the start to 1024
  // If the block rounds a: the whole rows of a tile, piece by piece of k, laid out as the copy engine would leave them
  // in tile buffers.
  static constexpr int kRoundedBytes = tile.rounds ? tile.rows * kMaxRoundedK : 0;
  static constexpr int kFixedBytes = kOutBytes + kRoundedBytes;
  static constexpr int kBuffers = (kBytes - kFixedBytes) / (kBufferBytes + kNoteBytes);
  static constexpr int kSharedBytes = 1024 + kFixedBytes + kBuffers * (kBufferBytes + kNoteBytes);

  static_assert(tile.cluster == 1 || (tile.cluster == 2 && (tile.rows == 128 || tile.transposed)),
                "a CTA pair has two tiles of 128 rows, or the same rows");
  static_assert((tile.transposed ? tile.columns : tile.rows) % kWgmmaGroupRows == 0,
                "a warpgroup has 64 rows of wgmma");
  static_assert(kMultipliers <= 2 && kThreads <= 1024, "registers go by warpgroups");
  static_assert(tile.columns % 16 == 0 && kWBox % 8 == 0 && kWBox <= 256, "boxes of the copy engine");
  static_assert(kABytes % 1024 == 0 && kWPiece % 1024 == 0 && kBufferBytes % 1024 == 0, "swizzled rows come in eights");
  static_assert(kBuffers >= 2, "a stage is loaded while another one is multiplied");
  static_assert(!tile.rounds || (tile.transposed && kRoundedBytes % 1024 == 0), "swizzled rows come in eights");
};

// What the multiplying warps must know of a tile. It arrives with the tile's first tile buffer.
struct TileCoord {
  // kPair: one of two tiles that share columns, or any tile without clusters. kSingle: a tile outside these pairs.
  // kHalf: a tile with rows for only one of two warpgroups. kEnd: there are no more tiles.
  enum Kind { kPair, kSingle, kHalf, kEnd };
  int first_row, end_row, first_column;
  int kind;
  int group = 0;

  __device__ static TileCoord load(int reader, uint32_t address) {
    const uint4 bits = load_shared_by(reader, address);
    return {static_cast<int>(bits.x), static_cast<int>(bits.y), static_cast<int>(bits.z), static_cast<int>(bits.w % 4),
            static_cast<int>(bits.w / 4)};
  }
  __device__ void store(uint32_t address) const {
    store_shared(address, {static_cast<uint32_t>(first_row), static_cast<uint32_t>(end_row),
                           static_cast<uint32_t>(first_column), static_cast<uint32_t>(kind + 4 * group)});
  }
};

template <WgmmaTile tile>
struct Block {
  using S = Shape<tile>;
  uint32_t staged, places;  // addresses in shared memory: of each warp's output, and of tile coordinates for each tile
                            // buffer
  Ring<S::kBuffers, S::kBufferBytes> ring;
  uint32_t rounded;  // address in shared memory of the rows that the block rounds
  int rank;          // of the block in its cluster
  int unit, units;   // the first unit; distance from a unit to the next
  int rounds;        // number of tile buffers that k fills

  // `depth`: elements of k in a piece
  __device__ Block(uint32_t start, int64_t k, int depth)
      : staged(start + S::kRoundedBytes + S::kBuffers * S::kBufferBytes),
        places(staged + S::kOutBytes),
        ring(start + S::kRoundedBytes, places + S::kBuffers * 16),
        rounded(start),
        rank(tile.cluster == 1 ? 0 : static_cast<int>(cluster_rank())),
        unit(static_cast<int>(blockIdx.x) / tile.cluster),
        units(static_cast<int>(gridDim.x) / tile.cluster),
        rounds(static_cast<int>((k + depth * S::kPieces - 1) / (depth * S::kPieces))) {}

  __device__ uint32_t place() const { return places + ring.index() * 16; }
};

constexpr uint16_t kBoth = 3;  // blocks of a cluster

// Calls load(work, round) in one lane for each tile buffer, once it is free, in the order of multiplication.
template <WgmmaTile tile, class Load>
__device__ void fill_buffers(const GemmArgs& args, Block<tile>& block, const Load& load) {
  const bool elected = elect_lane();
  TileScheduler<tile> scheduler(args);
  TileWork work;
  for (int unit = block.unit; scheduler.find(unit, block.rank, work); unit += block.units)
    for (int round = 0; round < block.rounds; ++round, block.ring.next()) {
      block.ring.wait_free();
      if (elected) load(work, round);
      __syncwarp();
    }
}

// Tells the multiplying warps which tile is being loaded into its first tile buffer, or that there are no more.
template <WgmmaTile tile>
__device__ void tell_place(const TileWork& work, const Block<tile>& block) {
  TileCoord{work.first_row, work.end_row, work.first_column,
            work.half           ? TileCoord::kHalf
            : work.same_columns ? TileCoord::kPair
                                : TileCoord::kSingle,
            work.group}
      .store(block.place());
}
template <WgmmaTile tile>
__device__ void tell_end(const Block<tile>& block) {
  block.ring.wait_free();
  if (threadIdx.x % 32 == 0) {
    TileCoord{0, 0, 0, TileCoord::kEnd}.store(block.place());
    barrier_arrive(block.ring.full());
  }
}

// Run by the warp that loads w. The warp that loads a, if there is one, also announces the bytes of w.
template <int depth, WgmmaTile tile>
__device__ void load_w(const GemmArgs& args, const CUtensorMap* map, Block<tile> block) {
  using S = Shape<tile>;
  constexpr int kBoxBytes = S::kWBox * kRowBytes;
  const auto load_piece = [&](const TileWork& work, uint32_t target, int x) {
    const uint32_t full = block.ring.full();
    if (tile.cluster > 1 && work.same_columns) {
      load_box_multicast(target + block.rank * kBoxBytes, map, full, kBoth, x,
                         work.first_column + block.rank * S::kWBox, work.group);
      return;
    }
#pragma unroll
    for (int i = 0; i < tile.cluster; ++i) {
      const int y = work.first_column + i * S::kWBox;
      if (work.w_read_once)
        load_box(target + i * kBoxBytes, map, full, x, y, work.group, kEvictFirst);
      else
        load_box(target + i * kBoxBytes, map, full, x, y, work.group);
    }
  };
  fill_buffers(args, block, [&](const TileWork& work, int round) {
    if constexpr (tile.rounds) {
      if (round == 0) tell_place(work, block);
      barrier_expect(block.ring.full(), S::kWBytes);
    }
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i)
      load_piece(work, block.ring.buffer() + S::kABytes + i * S::kWPiece, (round * S::kPieces + i) * depth);
  });
  if constexpr (tile.rounds) tell_end(block);
}

// Run by the warp that loads a. Beyond the last row of a group, tile buffers keep their old contents: these enter only
// sums that are not written.
template <int depth, WgmmaTile tile>
__device__ void load_a(const GemmArgs& args, const CUtensorMap* map, int box_rows, Block<tile> block) {
  using S = Shape<tile>;
  const int box_bytes = box_rows * kRowBytes;
  int boxes = 0;
  fill_buffers(args, block, [&](const TileWork& work, int round) {
    const uint32_t full = block.ring.full();
    if (round == 0) {
      tell_place(work, block);
      boxes = (min(work.end_row - work.first_row, tile.rows) + box_rows - 1) / box_rows;
    }
    barrier_expect(full, S::kWBytes + boxes * S::kPieces * box_bytes);
    for (int box = 0; box < boxes; ++box) {
#pragma unroll
      for (int i = 0; i < S::kPieces; ++i) {
        const uint32_t target = block.ring.buffer() + i * S::kAPiece + box * box_bytes;
        const int x = (round * S::kPieces + i) * depth, y = work.first_row + box * box_rows;
        if (tile.cluster == 1 || work.same_columns || work.half)
          load_box(target, map, full, x, y);
        else if (box % tile.cluster == block.rank)
          load_box_multicast(target, map, full, kBoth, x, y);
      }
    }
  });
  tell_end(block);
}

}  // namespace lfm2::wgmma_tiles
