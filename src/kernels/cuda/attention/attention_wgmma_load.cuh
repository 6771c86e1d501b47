// The loading warp of attention_wgmma.cu: it finds the tiles of queries, and loads them, their keys and their values.
#pragma once

#include "kernels/cuda/attention/attention_wgmma_block.cuh"

namespace lfm2::wgmma_attention {

// A token's distance from the first token of its sample, or, with pages, of its sequence's part of the batch.
template <bool paged>
__device__ int place_of(const AttentionArgs& args, int64_t token) {
  if constexpr (paged) return static_cast<int>(token) - args.pages.offsets[args.pages.sequence_of[token]];
  return args.positions[token];
}

// Calls work(tile) for every tile with output tokens of queries that starts in the window of kPositions tokens from
// `window` on; tiles start at every kPositions-th place. All lanes of a warp call this.
template <int kPositions, bool paged, class Work>
__device__ void for_each_tile(const AttentionArgs& args, int64_t window, int kv_head, Work&& work) {
  const int lane = threadIdx.x % 32;
  uint32_t starts[3], firsts[3];  // bits: a tile starts; a sample starts, or there is no token
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int64_t token = window + i * 32 + lane;
    const int place = token < args.tokens ? place_of<paged>(args, token) : 0;
    starts[i] = __ballot_sync(0xffffffffu, token < args.tokens && place % kPositions == 0);
    firsts[i] = __ballot_sync(0xffffffffu, place == 0);
  }
  const uint64_t near_firsts = uint64_t{firsts[1]} << 32 | firsts[0];
  for (uint64_t left = (uint64_t{starts[1]} << 32 | starts[0]) & ((uint64_t{1} << kPositions) - 1); left != 0;
       left &= left - 1) {
    const int start = __ffsll(static_cast<long long>(left)) - 1;
    const uint64_t behind = near_firsts >> (start + 1) | uint64_t{firsts[2]} << (63 - start);
    const int next = __ffsll(static_cast<long long>(behind));
    QueryTile tile;
    tile.first_token = window + start;
    tile.first_position = args.positions[tile.first_token];
    tile.positions = next == 0 ? kPositions : min(next, kPositions);
    tile.group = kGroup;
    tile.kv_head = kv_head;
    tile.sequence = paged ? args.pages.sequence_of[tile.first_token] : 0;
    if (!is_not_output<paged>(args, tile)) work(tile);
  }
}

// Loads the tiles of keys and values of a tile of queries. Beyond the last key, and in boxes wholly before the window,
// whose pages the sequence may no longer have, tile buffers may keep their old contents.
template <int width, bool paged, bool windowed>
__device__ void load_keys(const AttentionArgs& args, const Maps& maps, int box_rows, const QueryTile& tile,
                          bool elected, Block<width>& block) {
  using S = Sizes<width>;
  const int boxes = paged ? kKeyTile / box_rows : 1, box_bytes = box_rows * kRowBytes, keys = tile.keys();
  const int lane = threadIdx.x % 32;
  const int window = window_start<windowed>(args, tile.first_position), start = window / kKeyTile * kKeyTile;
  int rows = 0;  // with pages: the row of the lane's box of the 32 to which the next one belongs
  for (int first_key = start; first_key < keys; first_key += kKeyTile, block.keys.next()) {
    const int first_box = first_key / kKeyTile * boxes % 32;
    if (paged && (first_box == 0 || (windowed && first_key == start))) {
      const int position = first_key + (lane - first_box) * box_rows;
      rows = position + box_rows > window && position < keys ? cache_row(args.pages, tile.sequence, position) : 0;
    }
    const int skipped = paged && windowed ? max(window - first_key, 0) / box_rows : 0;
    const int count = paged ? min(boxes, (keys - first_key + box_rows - 1) / box_rows) : 1;
    block.keys.wait_free();
    const uint32_t full = block.keys.full(), target = block.keys.buffer();
    if (elected) barrier_expect(full, 2 * S::kPieces * (count - skipped) * box_bytes);
    for (int i = skipped; i < count; ++i) {
      const int row =
          paged ? __shfl_sync(0xffffffffu, rows, first_box + i) : static_cast<int>(tile.sample_start()) + first_key;
      if (elected) {
#pragma unroll
        for (int piece = 0; piece < S::kPieces; ++piece) {
          const uint32_t to = target + piece * S::kTilePieceBytes + i * box_bytes;
          load_box(to, &maps.keys, full, 0, tile.kv_head * S::kPieces + piece, row);
          load_box(to + S::kTileBytes, &maps.values, full, 0, tile.kv_head * S::kPieces + piece, row);
        }
      }
    }
    __syncwarp();
  }
}

// The warp that loads. A unit is a window of tokens and a key-value head; the last windows come first, because in a
// long sample they have the most keys. A block takes the next unit from the counter once it has loaded one.
template <int width, bool paged, bool windowed>
__device__ void load_tiles(const AttentionArgs& args, const Maps& maps, int box_rows, int32_t* next_unit,
                           Block<width> block) {
  using S = Sizes<width>;
  constexpr int kPositions = S::kPositions;
  const bool elected = elect_lane();
  const int64_t first = paged ? args.pages.singles : 0;
  const int windows = static_cast<int>((args.tokens - first + kPositions - 1) / kPositions);
  const int units = windows * args.kv_heads;
  for (int unit = static_cast<int>(blockIdx.x); unit < units;) {
    const int kv_head = unit % args.kv_heads;
    const int64_t window = first + static_cast<int64_t>(windows - 1 - unit / args.kv_heads) * kPositions;
    for_each_tile<kPositions, paged>(args, window, kv_head, [&](const QueryTile& tile) {
      block.queries.wait_free();
      if (elected) {
        TileCoord{static_cast<int>(tile.first_token), tile.first_position, tile.positions, kv_head}.store(
            block.place());
        barrier_expect(block.queries.full(), S::kQueryBytes);
#pragma unroll
        for (int piece = 0; piece < S::kPieces; ++piece)
          load_box(block.queries.buffer() + piece * S::kQueryPieceBytes, &maps.queries[piece], block.queries.full(), 0,
                   kv_head * kGroup, static_cast<int>(tile.first_token));
      }
      __syncwarp();
      block.queries.next();
      load_keys<width, paged, windowed>(args, maps, box_rows, tile, elected, block);
    });
    int taken = 0;
    if (threadIdx.x % 32 == 0) {
      taken = atomicAdd(next_unit, 1);
      if (taken == units - 1) *next_unit = 0;  // this was the last unit: ready for the next launch
    }
    unit = static_cast<int>(gridDim.x) + __shfl_sync(0xffffffffu, taken, 0);
  }
  block.queries.wait_free();
  if (threadIdx.x % 32 == 0) {
    TileCoord{0, 0, 0, 0}.store(block.place());
    barrier_arrive(block.queries.full());
  }
}

}  // namespace lfm2::wgmma_attention
