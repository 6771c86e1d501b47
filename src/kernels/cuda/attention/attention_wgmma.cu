// attention, and the part of cached_attention for several tokens of a sequence, for bf16 and fp16 on Hopper's tensor
// cores. It gives the bits of attention_mma.cu: wgmma adds 16 of k at a time as mma.sync does. Everything else is the
// same: the key tiles, their order, the softmax of a tile, the two terms of a probability, the splits.
//
// The kernel is persistent: one thread block stays on each SM. One warp finds tiles of queries and loads their keys and
// values ahead with the copy engine. Three warpgroups have 16 positions each, with all query heads of a key-value head.
// At a time a warpgroup multiplies with the next tile's keys and with the last tile's values, and computes the next
// weights meanwhile; the other warpgroups use the tensor cores while it leaves them idle.
#include <algorithm>

#include "kernels/cuda/attention/attention_rows.cuh"
#include "kernels/cuda/attention/attention_wgmma_load.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"

namespace lfm2 {

namespace {

using namespace wgmma_attention;

template <class T>
__device__ __forceinline__ void attend_tiles(const AttentionArgs& args, Block block);

// - operands: args.qkv [tokens, (heads + 2 kv_heads) 64]; without pages keys and values are those of qkv, with pages
//   pages.keys and .values [pages, page_size, kv_heads, 64]; out [tokens, heads 64]; all of type T, bf16 or fp16. The
//   maps describe the queries (boxes of kPositions tokens), the keys and the values (boxes of box_rows rows) to the
//   copy engine. next_unit is 0 between launches.
// - block: stays on its SM and takes units, each a window of kPositions tokens and a key-value head, from a counter;
//   the rows of a tile are the query heads of that head at consecutive positions.
// - thread: three warpgroups attend, 64 rows each (attend_tiles); the next warp loads (load_tiles); the others of its
//   warpgroup do nothing, as registers are assigned by warpgroup.
// - alignment: everything on 16 bytes; heads / kv_heads is kGroup; pages in multiples of 8 positions, box_rows a
//   divisor of the page and of kKeyTile.
template <class T, bool paged>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ CUtensorMap query_map, const __grid_constant__ CUtensorMap key_map,
                           const __grid_constant__ CUtensorMap value_map, const __grid_constant__ AttentionArgs args,
                           int box_rows, int32_t* next_unit) {
  extern __shared__ char shared[];
  Block block(shared + (1024 - shared_address(shared) % 1024) % 1024);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&query_map);
    prefetch_tensor_map(&key_map);
    prefetch_tensor_map(&value_map);
    block.queries.init_barriers(kMultipliers * 4);
    block.keys.init_barriers(kMultipliers * 4);
    barrier_init_fence();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kLoader) {
    setmaxnreg_inc<kMultiplierRegisters>();
    attend_tiles<T>(args, block);
  } else {
    setmaxnreg_dec<kLoaderRegisters>();
    if (warp == kLoader) load_tiles<paged>(args, &query_map, &key_map, &value_map, box_rows, next_unit, block);
  }
}

using Sums = float[kScoreParts][4];
__device__ __forceinline__ float (&flat(Sums& sums))[kScoreParts * 4] {
  return reinterpret_cast<float(&)[kScoreParts * 4]>(sums);
}

// scores = queries times the tile's keys, started in the background.
template <class T>
__device__ __forceinline__ void multiply_keys(uint32_t queries, uint32_t keys, Sums& scores) {
  const WgmmaOperand a(queries), w(keys);
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d)
    wgmma<T, kKeyTile>(flat(scores), a.at(d * kWgmmaStep), w.at(d * kWgmmaStep), d > 0);
  wgmma_commit();
}

// part = weights (high + low) times the tile's values, started in the background.
template <class T>
__device__ __forceinline__ void multiply_values(uint32_t values, const uint32_t (&high)[kKeyTile / 16][4],
                                                const uint32_t (&low)[kKeyTile / 16][4], Sums& part) {
  const WgmmaOperand w(values);
#pragma unroll
  for (int key = 0; key < kKeyTile / 16; ++key) {
    wgmma_64_transposed<T>(flat(part), low[key], w.at(key * kWgmmaRowStep), key > 0);
    wgmma_64_transposed<T>(flat(part), high[key], w.at(key * kWgmmaRowStep), true);
  }
  wgmma_commit();
}

// Sets the rows from `first` on of a tile of values to zero. They are not values of the sample, and a weight of zero
// does not remove infinities and NaNs. Each warpgroup does this itself; all write the same.
__device__ __forceinline__ void clear_values(uint32_t values, int first) {
  for (int at = first * kRowBytes + static_cast<int>(threadIdx.x) % kWarpgroup * 16; at < kTileBytes;
       at += kWarpgroup * 16)
    store_shared(values + at, {0, 0, 0, 0});
  fence_proxy_async();
  asm volatile("bar.sync %0, 128;\n" ::"r"(1 + static_cast<int>(threadIdx.x) / kWarpgroup) : "memory");
}

// One warpgroup's work on its rows of one tile of queries.
template <class T>
struct GroupWork {
  using State = Rows<T, kHeadDim, Block>;
  using Step = KeyStep<T, kHeadDim>;

  Block& block;
  const QueryTile& tile;
  const int first_position;  // of the warpgroup's first row
  uint32_t queries;

  __device__ __forceinline__ void release(uint32_t free) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(free);
  }
  __device__ __forceinline__ void mask(const State& rows, int step, Sums& scores) const {
    if (step * kKeyTile + kKeyTile - 1 > first_position) Step::mask(step * kKeyTile, rows.positions, scores);
  }

  // Adds the tiles of keys [first, end), which belong to one split.
  __device__ __forceinline__ void add_tiles(State& rows, int first, int end) const {
    Sums scores, part;
    uint32_t high[kKeyTile / 16][4], low[kKeyTile / 16][4];
    float shrink[2];
    block.keys.wait_full();
    wgmma_fence();
    multiply_keys<T>(queries, block.keys.buffer(), scores);
    wgmma_wait<0>();
    wgmma_keep(flat(scores));
    mask(rows, first, scores);
    rows.weigh(scores, shrink);
    Step::template terms<2>(scores, high, low);
#pragma unroll 1
    for (int step = first + 1; step < end; ++step) {
      const uint32_t values = block.keys.buffer() + kTileBytes, free = block.keys.free();
      block.keys.next();
      block.keys.wait_full();
      wgmma_fence();
      multiply_keys<T>(queries, block.keys.buffer(), scores);
      multiply_values<T>(values, high, low, part);
      wgmma_wait<1>();
      wgmma_keep(flat(scores));
      float next_shrink[2];
      mask(rows, step, scores);
      rows.weigh(scores, next_shrink);
      wgmma_wait<0>();
      wgmma_keep(flat(part));
      release(free);
      rows.join(0, part, shrink);
      shrink[0] = next_shrink[0];
      shrink[1] = next_shrink[1];
      Step::template terms<2>(scores, high, low);
    }
    const uint32_t values = block.keys.buffer() + kTileBytes;
    if (end * kKeyTile > tile.keys()) clear_values(values, tile.keys() - (end - 1) * kKeyTile);
    wgmma_fence();
    multiply_values<T>(values, high, low, part);
    wgmma_wait<0>();
    wgmma_keep(flat(part));
    release(block.keys.free());
    block.keys.next();
    rows.join(0, part, shrink);
  }
};

// What one warpgroup does for one tile of queries.
template <class T>
__device__ __forceinline__ void attend(const AttentionArgs& args, const QueryTile& tile, Block& block) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);  // known to be uniform
  const int first_row = warpgroup * kGroupRows, first_position = tile.row_position(first_row);
  const GroupWork<T> work{block, tile, first_position, block.queries.buffer() + first_row * kRowBytes};
  const int last_position = min(tile.row_position(first_row + kGroupRows - 1), tile.keys() - 1);
  const int steps = first_position <= last_position ? last_position / kKeyTile + 1 : 0;
  Rows<T, kHeadDim, Block> rows(block, args.scale, tile, static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4);
#pragma unroll 1
  for (int first = 0; first < steps; first += kSplitTiles) {
    if (first > 0) rows.set_aside();
    work.add_tiles(rows, first, min(first + kSplitTiles, steps));
    rows.close_split(first * kKeyTile);
  }
#pragma unroll 1
  for (int step = steps; step * kKeyTile < tile.keys(); ++step, block.keys.next()) {  // other warpgroups' last keys
    block.keys.wait_full();
    work.release(block.keys.free());
  }
  work.release(block.queries.free());
  block.queries.next();
  if (steps > 0) rows.store(args, tile);
}

template <class T>
__device__ __forceinline__ void attend_tiles(const AttentionArgs& args, Block block) {
  while (true) {
    block.queries.wait_full();
    const TileCoord place = TileCoord::load(block.place());
    if (place.positions == 0) return;
    const QueryTile tile{place.first_token, place.first_position, place.positions, kGroup, place.kv_head, 0};
    attend<T>(args, tile, block);
  }
}

template <class T, bool paged>
void launch(cudaStream_t stream, const AttentionArgs& args, DType act, int multiprocessors, int32_t* next_unit) {
  const KeyPages& pages = args.pages;
  constexpr auto kernel = attention_wgmma_kernel<T, paged>;
  allow_shared_bytes<kernel, kSharedBytes>();
  const int64_t row_bytes = int64_t{args.heads + 2 * args.kv_heads} * kRowBytes;
  const CUtensorMap query_map = heads_map(args.qkv, act, args.tokens, args.heads, row_bytes, kPositions, kGroup);
  const char *keys = static_cast<const char*>(args.qkv) + int64_t{args.heads} * kRowBytes,
             *values = keys + int64_t{args.kv_heads} * kRowBytes;
  int64_t rows = args.tokens, key_bytes = row_bytes;
  int box_rows = kKeyTile;
  if (paged) {
    keys = static_cast<const char*>(pages.keys);
    values = static_cast<const char*>(pages.values);
    rows = pages.pages * pages.page_size;
    key_bytes = int64_t{args.kv_heads} * kRowBytes;
    while (pages.page_size % box_rows != 0) box_rows /= 2;
  }
  const CUtensorMap key_map = heads_map(keys, act, rows, args.kv_heads, key_bytes, box_rows, 1);
  const CUtensorMap value_map = heads_map(values, act, rows, args.kv_heads, key_bytes, box_rows, 1);
  const int64_t units = ceil_divide(args.tokens - pages.singles, kPositions) * args.kv_heads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(units, multiprocessors));
  kernel<<<blocks, kThreads, kSharedBytes, stream>>>(query_map, key_map, value_map, args, box_rows, next_unit);
  check_launch("attention_wgmma_kernel");
}

}  // namespace

bool attention_wgmma_takes(const AttentionArgs& args) {
  const KeyPages& pages = args.pages;
  return pages.key_scales == nullptr && args.head_dim == kHeadDim && args.heads == kGroup * args.kv_heads &&
         on_16_bytes(args.qkv) && on_16_bytes(pages.keys) && on_16_bytes(pages.values) &&
         (pages.keys == nullptr || pages.page_size % 8 == 0);
}

void launch_attention_wgmma(cudaStream_t stream, const AttentionArgs& args, DType act, int multiprocessors,
                            int32_t* next_unit) {
  if (args.tokens == args.pages.singles) return;
  with_16_bit_type(act, [&](auto zero) {
    with_constant(args.pages.keys != nullptr,
                  [&](auto paged) { launch<decltype(zero), paged()>(stream, args, act, multiprocessors, next_unit); });
  });
}

}  // namespace lfm2
