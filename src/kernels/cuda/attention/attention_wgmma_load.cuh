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
template <bool paged, class Work>
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

// Loads the tiles of keys and values of a tile of queries. Beyond the last key, tile buffers may keep their old
// contents.
template <bool paged>
__device__ void load_keys(const AttentionArgs& args, const CUtensorMap* key_map, const CUtensorMap* value_map,
                          int box_rows, const QueryTile& tile, bool elected, Block& block) {
  const int boxes = paged ? kKeyTile / box_rows : 1, box_bytes = box_rows * kRowBytes, keys = tile.keys();
  const int lane = threadIdx.x % 32;
  int rows = 0;  // with pages: the row of the lane's box of the next 32
  for (int first_key = 0; first_key < keys; first_key += kKeyTile, block.keys.next()) {
    const int first_box = first_key / kKeyTile * boxes % 32;
    if (paged && first_box == 0) {
      const int position = first_key + lane * box_rows;
      rows = position < keys ? cache_row(args.pages, tile.sequence, position) : 0;
    }
    const int count = paged ? min(boxes, (keys - first_key + box_rows - 1) / box_rows) : 1;
    block.keys.wait_free();
    const uint32_t full = block.keys.full(), target = block.keys.buffer();
    if (elected) barrier_expect(full, 2 * count * box_bytes);
    for (int i = 0; i < count; ++i) {
      const int row =
          paged ? __shfl_sync(0xffffffffu, rows, first_box + i) : static_cast<int>(tile.sample_start()) + first_key;
      if (elected) {
        load_box(target + i * box_bytes, key_map, full, 0, tile.kv_head, row);
        load_box(target + kTileBytes + i * box_bytes, value_map, full, 0, tile.kv_head, row);
      }
    }
    __syncwarp();
  }
}

// The warp that loads. A unit is a window of tokens and a key-value head; the last windows come first, because in a
// long sample they have the most keys. A block takes the next unit from the counter once it has loaded one.
template <bool paged>
__device__ void load_tiles(const AttentionArgs& args, const CUtensorMap* query_map, const CUtensorMap* key_map,
                           const CUtensorMap* value_map, int box_rows, int32_t* next_unit, Block block) {
  const bool elected = elect_lane();
  const int64_t first = paged ? args.pages.singles : 0;
  const int windows = static_cast<int>((args.tokens - first + kPositions - 1) / kPositions);
  const int units = windows * args.kv_heads;
  for (int unit = static_cast<int>(blockIdx.x); unit < units;) {
    const int kv_head = unit % args.kv_heads;
    const int64_t window = first + static_cast<int64_t>(windows - 1 - unit / args.kv_heads) * kPositions;
    for_each_tile<paged>(args, window, kv_head, [&](const QueryTile& tile) {
      block.queries.wait_free();
      if (elected) {
        TileCoord{static_cast<int>(tile.first_token), tile.first_position, tile.positions, kv_head}.store(
            block.place());
        barrier_expect(block.queries.full(), kQueryBytes);
        load_box(block.queries.buffer(), query_map, block.queries.full(), 0, kv_head * kGroup,
                 static_cast<int>(tile.first_token));
      }
      __syncwarp();
      block.queries.next();
      load_keys<paged>(args, key_map, value_map, box_rows, tile, elected, block);
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
