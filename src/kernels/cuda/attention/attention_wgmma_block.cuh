// The thread block of attention_wgmma.cu: its warps' roles, and the rings of tile buffers in its shared memory.
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/ptx/ring.cuh"

namespace lfm2::wgmma_attention {

constexpr int kGroup = 4;        // query heads of one key-value head
constexpr int kWarpgroup = 128;  // threads
constexpr int kGroupRows = 64;   // of a warpgroup
constexpr int kPieceColumns = 64, kRowBytes = kPieceColumns * 2;
constexpr int kQueryBuffers = 2;

// How a block divides its threads, registers and shared memory for heads of `width`, 64 or 128. In shared memory, rows
// lie in pieces of 64 columns: all rows of the first piece, then those of the second.
template <int width>
struct Sizes {
  static constexpr int kPieces = width / kPieceColumns;
  static_assert(width % kPieceColumns == 0 && (kPieces == 1 || kPieces == 2));
  static constexpr int kMultipliers = kPieces == 1 ? 3 : 2;                                     // warpgroups
  static constexpr int kThreads = (kMultipliers + 1) * kWarpgroup, kLoader = kMultipliers * 4;  // a warp
  // All registers of an SM. The few values that do not fit are spilled and read outside of the loop over key tiles.
  static constexpr int kLoaderRegisters = kPieces == 1 ? 32 : 40, kMultiplierRegisters = kPieces == 1 ? 160 : 232;
  static constexpr int kRows = kMultipliers * kGroupRows, kPositions = kRows / kGroup;

  static constexpr int kQueryPieceBytes = kRows * kRowBytes, kQueryBytes = kPieces * kQueryPieceBytes;
  static constexpr int kTilePieceBytes = kKeyTile * kRowBytes, kTileBytes = kPieces * kTilePieceBytes;
  static constexpr int kBufferBytes = 2 * kTileBytes;  // a tile of keys, then its values
  // After the tile buffers: the merged output of earlier splits, fp32, and for each row the largest score and the total
  // of those splits; the tiles' coordinates; barriers.
  static constexpr int kMergedBytes = kRows * width * 4, kMergedRowBytes = kRows * 8;
  static constexpr int kFixedBytes = kQueryBuffers * (kQueryBytes + 32) + kMergedBytes + kMergedRowBytes;
  static constexpr int kBuffers = (227 * 1024 - 1024 - kFixedBytes) / (kBufferBytes + 16);
  static constexpr int kSharedBytes = 1024 + kFixedBytes + kBuffers * (kBufferBytes + 16);
  static_assert(kRows % kGroup == 0 && kPositions <= 64, "the window of a unit is one word of ballots");
  static_assert(kQueryPieceBytes % 1024 == 0 && kTilePieceBytes % 1024 == 0, "swizzled rows come in eights");
  static_assert(kBuffers >= 2, "a stage is loaded while another one is multiplied");
};

// The queries' pieces, the keys and the values, as the copy engine loads them.
struct Maps {
  CUtensorMap queries[2], keys, values;
};

// What the multiplying warps must know of a tile of queries. No positions: there are no more tiles.
struct TileCoord {
  int first_token, first_position, positions, kv_head;

  __device__ static TileCoord load(uint32_t address) {
    const uint4 bits = load_shared_by(0, address);
    return {static_cast<int>(bits.x), static_cast<int>(bits.y), static_cast<int>(bits.z), static_cast<int>(bits.w)};
  }
  __device__ void store(uint32_t address) const {
    store_shared(address, {static_cast<uint32_t>(first_token), static_cast<uint32_t>(first_position),
                           static_cast<uint32_t>(positions), static_cast<uint32_t>(kv_head)});
  }
};

// The block's shared memory, and a warp's position in its rings.
template <int width>
struct Block {
  using S = Sizes<width>;
  char* shared;  // on 1024 bytes
  Ring<kQueryBuffers, S::kQueryBytes> queries;
  Ring<S::kBuffers, S::kBufferBytes> keys;
  uint32_t places;

  __device__ explicit Block(char* memory) : Block(memory, shared_address(memory)) {}
  __device__ Block(char* memory, uint32_t start)
      : shared(memory),
        queries(start, start + kBarriers),
        keys(start + kQueryBuffers * S::kQueryBytes, start + kBarriers + kQueryBuffers * 16),
        places(start + kPlaces) {}

  __device__ uint32_t place() const { return places + queries.index() * 16; }
  __device__ float& merged_out(int i) const {
    return reinterpret_cast<float*>(shared +
                                    kMerged)[i * (S::kMultipliers * kWarpgroup) + static_cast<int>(threadIdx.x)];
  }
  __device__ float2& merged_row(int row) const { return reinterpret_cast<float2*>(shared + kMergedRows)[row]; }

 private:
  static constexpr int kMerged = kQueryBuffers * S::kQueryBytes + S::kBuffers * S::kBufferBytes;
  static constexpr int kMergedRows = kMerged + S::kMergedBytes, kPlaces = kMergedRows + S::kMergedRowBytes;
  static constexpr int kBarriers = kPlaces + kQueryBuffers * 16;
};

}  // namespace lfm2::wgmma_attention
