// attention, and the part of cached_attention for several tokens of a sequence, for bf16 and fp16 on Hopper's tensor
// cores. It gives the bits of attention_mma.cu: wgmma adds 16 of k at a time as mma.sync does. Everything else is the
// same: the key tiles, their order, the softmax of a tile, the two terms of a probability, the splits.
//
// The kernel is persistent: one thread block stays on each SM. One warp finds tiles of queries and loads their keys and
// values ahead with the copy engine. Three warpgroups, or for wide heads two, have 16 positions each, with all query
// heads of a key-value head.
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

template <class T, int width, bool windowed>
__device__ __forceinline__ void attend_tiles(const AttentionArgs& args, Block<width> block);

// - operands: args.qkv [tokens, columns]; without pages keys and values are those of qkv, with pages pages.keys and
//   .values [pages, page_size, kv_heads, width]; out [tokens, heads width]; all of type T, bf16 or fp16. The maps
//   describe the queries (boxes of kPositions tokens), the keys and the values (boxes of box_rows rows) to the copy
//   engine. next_unit is 0 between launches. `windowed`: args.window is one.
// - block: stays on its SM and takes units, each a window of kPositions tokens and a key-value head, from a counter;
//   the rows of a tile are the query heads of that head at consecutive positions.
// - thread: kMultipliers warpgroups attend, 64 rows each (attend_tiles); the next warp loads (load_tiles); the others
// of
//   its warpgroup do nothing, as registers are assigned by warpgroup.
// - alignment: everything on 16 bytes; heads / kv_heads is kGroup; pages in multiples of 8 positions, box_rows a
//   divisor of the page and of kKeyTile.
template <class T, int width, bool paged, bool windowed>
__global__ void __launch_bounds__(Sizes<width>::kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ Maps maps, const __grid_constant__ AttentionArgs args, int box_rows,
                           int32_t* next_unit) {
  using S = Sizes<width>;
  extern __shared__ char shared[];
  Block<width> block(shared + (1024 - shared_address(shared) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int piece = 0; piece < S::kPieces; ++piece) prefetch_tensor_map(&maps.queries[piece]);
    prefetch_tensor_map(&maps.keys);
    prefetch_tensor_map(&maps.values);
    block.queries.init_barriers(S::kMultipliers * 4);
    block.keys.init_barriers(S::kMultipliers * 4);
    barrier_init_fence();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < S::kLoader) {
    setmaxnreg_inc<S::kMultiplierRegisters>();
    attend_tiles<T, width, windowed>(args, block);
  } else {
    setmaxnreg_dec<S::kLoaderRegisters>();
    if (warp == S::kLoader) load_tiles<width, paged, windowed>(args, maps, box_rows, next_unit, block);
  }
}

using Sums = float[kScoreParts][4];
__device__ __forceinline__ float (&flat(Sums& sums))[kScoreParts * 4] {
  return reinterpret_cast<float(&)[kScoreParts * 4]>(sums);
}

// scores = queries times the tile's keys, started in the background.
template <class T, int width>
__device__ __forceinline__ void multiply_keys(uint32_t queries, uint32_t keys, Sums& scores) {
  using S = Sizes<width>;
  constexpr int kSteps = kPieceColumns / 16;  // of a piece
  const WgmmaOperand a(queries), w(keys);
#pragma unroll
  for (int d = 0; d < width / 16; ++d)
    wgmma<T, kKeyTile>(flat(scores), a.at(d / kSteps * (S::kQueryPieceBytes >> 4) + d % kSteps * kWgmmaStep),
                       w.at(d / kSteps * (S::kTilePieceBytes >> 4) + d % kSteps * kWgmmaStep), d > 0);
  wgmma_commit();
}

// part = weights (high + low) times the tile's values, started in the background.
template <class T, int pieces>
__device__ __forceinline__ void multiply_values(uint32_t values, const uint32_t (&high)[kKeyTile / 16][4],
                                                const uint32_t (&low)[kKeyTile / 16][4], Sums (&part)[pieces]) {
  const WgmmaOperand w(values);
#pragma unroll
  for (int key = 0; key < kKeyTile / 16; ++key)
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      const uint64_t rows = w.at(piece * (kKeyTile * kRowBytes >> 4) + key * kWgmmaRowStep);
      wgmma_64_transposed<T>(flat(part[piece]), low[key], rows, key > 0);
      wgmma_64_transposed<T>(flat(part[piece]), high[key], rows, true);
    }
  wgmma_commit();
}

// Sets the rows [first, end) of a tile of values to zero. They are not values of the sample, and a weight of zero does
// not remove infinities and NaNs. Each warpgroup does this itself; all write the same.
template <int pieces>
__device__ __forceinline__ void clear_values(uint32_t values, int first, int end) {
  constexpr int kPieceBytes = kKeyTile * kRowBytes;
#pragma unroll 1
  for (int piece = 0; piece < pieces; ++piece)
    for (int at = first * kRowBytes + static_cast<int>(threadIdx.x) % kWarpgroup * 16; at < end * kRowBytes;
         at += kWarpgroup * 16)
      store_shared(values + piece * kPieceBytes + at, {0, 0, 0, 0});
  fence_proxy_async();
  asm volatile("bar.sync %0, 128;\n" ::"r"(1 + static_cast<int>(threadIdx.x) / kWarpgroup) : "memory");
}

// One warpgroup's work on its rows of one tile of queries.
template <class T, int width, bool windowed>
struct GroupWork {
  using S = Sizes<width>;
  using State = Rows<T, width, Block<width>, windowed>;
  using Step = KeyStep<T, width>;

  Block<width>& block;
  const QueryTile& tile;
  const int first_position;  // of the warpgroup's first row
  uint32_t queries;

  __device__ __forceinline__ void release(uint32_t free) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(free);
  }
  __device__ __forceinline__ void mask(const State& rows, int step, Sums& scores) const {
    if (step * kKeyTile + kKeyTile - 1 > first_position) Step::mask(step * kKeyTile, rows.positions, scores);
    if constexpr (windowed)
      if (step * kKeyTile < first_position + kGroupRows / kGroup - rows.args.window)
        rows.mask_window(step * kKeyTile, scores);
  }

  __device__ __forceinline__ static void keep(Sums (&part)[S::kPieces]) {
#pragma unroll
    for (Sums& piece : part) wgmma_keep(flat(piece));
  }
  __device__ __forceinline__ static void join(State& rows, const Sums (&part)[S::kPieces], const float (&shrink)[2]) {
#pragma unroll
    for (int piece = 0; piece < S::kPieces; ++piece) rows.join(piece * kScoreParts, part[piece], shrink);
  }

  // Adds the tiles of keys [first, end), which belong to one split.
  __device__ __forceinline__ void add_tiles(State& rows, int first, int end) const {
    Sums scores, part[S::kPieces];
    uint32_t high[kKeyTile / 16][4], low[kKeyTile / 16][4];
    float shrink[2];
    block.keys.wait_full();
    if constexpr (windowed) {  // before the window, nothing was loaded
      const int before = window_start<true>(rows.args, tile.first_position) - first * kKeyTile;
      if (before > 0) clear_values<S::kPieces>(block.keys.buffer() + S::kTileBytes, 0, before);
    }
    wgmma_fence();
    multiply_keys<T, width>(queries, block.keys.buffer(), scores);
    wgmma_wait<0>();
    wgmma_keep(flat(scores));
    mask(rows, first, scores);
    rows.weigh(scores, shrink);
    Step::template terms<2>(scores, high, low);
#pragma unroll 1
    for (int step = first + 1; step < end; ++step) {
      const uint32_t values = block.keys.buffer() + S::kTileBytes, free = block.keys.free();
      block.keys.next();
      block.keys.wait_full();
      wgmma_fence();
      multiply_keys<T, width>(queries, block.keys.buffer(), scores);
      multiply_values<T>(values, high, low, part);
      wgmma_wait<1>();
      wgmma_keep(flat(scores));
      float next_shrink[2];
      mask(rows, step, scores);
      rows.weigh(scores, next_shrink);
      wgmma_wait<0>();
      keep(part);
      release(free);
      join(rows, part, shrink);
      shrink[0] = next_shrink[0];
      shrink[1] = next_shrink[1];
      Step::template terms<2>(scores, high, low);
    }
    const uint32_t values = block.keys.buffer() + S::kTileBytes;
    if (end * kKeyTile > tile.keys()) clear_values<S::kPieces>(values, tile.keys() - (end - 1) * kKeyTile, kKeyTile);
    wgmma_fence();
    multiply_values<T>(values, high, low, part);
    wgmma_wait<0>();
    keep(part);
    release(block.keys.free());
    block.keys.next();
    join(rows, part, shrink);
  }
};

// What one warpgroup does for one tile of queries.
template <class T, int width, bool windowed>
__device__ __forceinline__ void attend(const AttentionArgs& args, const QueryTile& tile, Block<width>& block) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);  // known to be uniform
  const int first_row = warpgroup * kGroupRows, first_position = tile.row_position(first_row);
  const GroupWork<T, width, windowed> work{block, tile, first_position, block.queries.buffer() + first_row * kRowBytes};
  const int last_position = min(tile.row_position(first_row + kGroupRows - 1), tile.keys() - 1);
  const int steps = first_position <= last_position ? last_position / kKeyTile + 1 : 0;
  const int first_step = window_start<windowed>(args, tile.first_position) / kKeyTile;
  Rows<T, width, Block<width>, windowed> rows(args, block, tile, static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4);
#pragma unroll 1
  for (int first = first_step; first < steps;) {
    const int split = first / kSplitTiles, end = min((split + 1) * kSplitTiles, steps);
    if (first > first_step) rows.set_aside();
    work.add_tiles(rows, first, end);
    rows.close_split(split * kSplitKeys, first == first_step);
    first = end;
  }
#pragma unroll 1
  for (int step = max(steps, first_step); step * kKeyTile < tile.keys();  // other warpgroups' last keys
       ++step, block.keys.next()) {
    block.keys.wait_full();
    work.release(block.keys.free());
  }
  work.release(block.queries.free());
  block.queries.next();
  if (steps > 0) rows.store(tile);
}

template <class T, int width, bool windowed>
__device__ __forceinline__ void attend_tiles(const AttentionArgs& args, Block<width> block) {
  while (true) {
    block.queries.wait_full();
    const TileCoord place = TileCoord::load(block.place());
    if (place.positions == 0) return;
    const QueryTile tile{place.first_token, place.first_position, place.positions, kGroup, place.kv_head, 0};
    attend<T, width, windowed>(args, tile, block);
  }
}

template <class T, int width, bool paged, bool windowed>
void launch(cudaStream_t stream, const AttentionArgs& args, DType act, int multiprocessors, int32_t* next_unit) {
  using S = Sizes<width>;
  const KeyPages& pages = args.pages;
  constexpr auto kernel = attention_wgmma_kernel<T, width, paged, windowed>;
  allow_shared_bytes<kernel, S::kSharedBytes>();
  constexpr int kHeadBytes = S::kPieces * kRowBytes;
  const int64_t row_bytes = args.columns * 2;
  Maps maps;
  for (int piece = 0; piece < 2; ++piece)
    maps.queries[piece] = heads_map(static_cast<const char*>(args.qkv) + piece % S::kPieces * kRowBytes, act,
                                    args.tokens, args.heads, kHeadBytes, row_bytes, S::kPositions, kGroup);
  const char *keys = static_cast<const char*>(args.qkv) + int64_t{args.heads} * kHeadBytes,
             *values = keys + int64_t{args.kv_heads} * kHeadBytes;
  int64_t rows = args.tokens, key_bytes = row_bytes;
  int box_rows = kKeyTile;
  if (paged) {
    keys = static_cast<const char*>(pages.keys);
    values = static_cast<const char*>(pages.values);
    rows = pages.pages * pages.page_size;
    key_bytes = int64_t{args.kv_heads} * kHeadBytes;
    while (pages.page_size % box_rows != 0) box_rows /= 2;
  }
  const int64_t pieces = int64_t{args.kv_heads} * S::kPieces;
  maps.keys = heads_map(keys, act, rows, pieces, kRowBytes, key_bytes, box_rows, 1);
  maps.values = heads_map(values, act, rows, pieces, kRowBytes, key_bytes, box_rows, 1);
  const int64_t units = ceil_divide(args.tokens - pages.singles, S::kPositions) * args.kv_heads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(units, multiprocessors));
  kernel<<<blocks, S::kThreads, S::kSharedBytes, stream>>>(maps, args, box_rows, next_unit);
  check_launch("attention_wgmma_kernel");
}

}  // namespace

bool attention_wgmma_takes(const AttentionArgs& args) {
  const KeyPages& pages = args.pages;
  return pages.key_scales == nullptr && (args.head_dim == 64 || args.head_dim == 128) &&
         args.heads == kGroup * args.kv_heads && args.columns % 8 == 0 && on_16_bytes(args.qkv) &&
         on_16_bytes(pages.keys) && on_16_bytes(pages.values) && (pages.keys == nullptr || pages.page_size % 8 == 0);
}

void launch_attention_wgmma(cudaStream_t stream, const AttentionArgs& args, DType act, int multiprocessors,
                            int32_t* next_unit) {
  if (args.tokens == args.pages.singles) return;
  with_16_bit_type(act, [&](auto zero) {
    with_constant(args.pages.keys != nullptr, [&](auto paged) {
      with_constant(args.window != kNoWindow, [&](auto windowed) {
        with_constant(args.head_dim == 128, [&](auto wide) {
          launch<decltype(zero), wide() ? 128 : 64, paged(), windowed()>(stream, args, act, multiprocessors, next_unit);
        });
      });
    });
  });
}

}  // namespace lfm2
