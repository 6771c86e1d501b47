// How the attention kernels cut a packed batch into tiles, without asking the host: a block looks at a window of tokens
// and takes the tiles that start in it. Tiles start at fixed positions of a sample, so a token's tile, and the keys it
// meets in one step, depend on its position only.
#pragma once

#include "kernels/cuda/device_types.cuh"

namespace lfm2 {

constexpr int kKeyTile = 64;  // keys of one step of the online softmax, counted from the start of the sample

// The query heads of one key-value head, at some consecutive positions of a sample, are the rows of one tile: row r is
// position r / group and head r % group.
struct QueryTile {
  int64_t first_token;  // of the tile
  int first_position;   // in its sample
  int positions;        // in the tile
  int group;            // query heads of one key-value head
  int kv_head;

  __device__ int64_t sample_start() const { return first_token - first_position; }
  __device__ int keys() const { return first_position + positions; }
  __device__ bool row_valid(int row) const { return row / group < positions; }
  __device__ int row_position(int row) const { return first_position + row / group; }
};

// Columns of qkv, in elements.
struct QkvColumns {
  int64_t stride, key, value;  // a token's step; where the key and value heads begin
  __device__ explicit QkvColumns(const AttentionArgs& args)
      : stride(static_cast<int64_t>(args.heads + 2 * args.kv_heads) * args.head_dim),
        key(static_cast<int64_t>(args.heads) * args.head_dim),
        value(static_cast<int64_t>(args.heads + args.kv_heads) * args.head_dim) {}
};

// work(tile) for every tile that starts in this block's window of `tile_positions` (at most 128) tokens. Windows are
// taken from the end: in a long sample those have the most keys. All threads of the block take part.
template <class Work>
__device__ void for_each_query_tile(const AttentionArgs& args, int tile_positions, Work&& work) {
  __shared__ uint32_t starts[4];
  const int64_t window = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * tile_positions;
  const int t = threadIdx.x;
  const bool inside = t < tile_positions && window + t < args.tokens;
  const unsigned ballot = __ballot_sync(0xffffffffu, inside && args.positions[window + t] % tile_positions == 0);
  if (t % 32 == 0 && t < 128) starts[t / 32] = ballot;
  __syncthreads();
  for (int word = 0; word < 4; ++word)
    for (uint32_t left = starts[word]; left != 0; left &= left - 1) {
      QueryTile tile;
      tile.first_token = window + word * 32 + __ffs(left) - 1;
      tile.first_position = args.positions[tile.first_token];
      const int64_t token = tile.first_token + t;
      const bool same_sample =
          t < tile_positions && token < args.tokens && args.positions[token] == tile.first_position + t;
      tile.positions = __syncthreads_count(same_sample);  // also: the last tile's shared memory is free
      tile.group = args.heads / args.kv_heads;
      tile.kv_head = blockIdx.y;
      work(tile);
    }
}

inline dim3 attention_grid(const AttentionArgs& args, int tile_positions) {
  return dim3(static_cast<unsigned>(ceil_divide(args.tokens, tile_positions)), static_cast<unsigned>(args.kv_heads));
}

}  // namespace lfm2
