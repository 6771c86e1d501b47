// cached_attention of sequences with one new token, for bf16 and fp16: the query heads of one key-value head are rows
// of a 16-row tile of tensor cores. Each warp streams tiles of keys and of values through its own shared memory: it
// loads the next keys while it weighs the last ones, and the next values while it multiplies keys.
#include <algorithm>

#include "kernels/cuda/attention/cached_attention_decode.cuh"
#include "kernels/cuda/attention/cached_attention_decode_tiles.cuh"
#include "kernels/cuda/common/shared_memory.cuh"

namespace lfm2 {

namespace {

constexpr int kRows = 16;  // query rows in a tile
constexpr int kLanes = 4;  // lanes that share a row of scores
template <int width>
constexpr int kMaxWarps = 512 / width;
constexpr int kSharedPerProcessor = 220 << 10;  // of an SM of sm_90; on other GPUs the number of warps fits less well
constexpr int kMinBlocks = 2;  // with keys and values in fp8, blocks of kMaxWarps for whose registers an SM has room
template <class E, int width>  // the warps for whose registers an SM has room; of 16-bit types shared memory has less
constexpr int kResidentWarps = std::is_same_v<E, F8> ? kMinBlocks* kMaxWarps<width> : 64;

template <class Step>
__device__ __forceinline__ void mask_tile(const DecodeRows& block, int begin, float (&scores)[kScoreParts][4]);
template <class Step, int halves>
__device__ __forceinline__ void store_largest(const float (&scores)[kScoreParts][4], int rows, const DecodeState& s);
template <class Step, int halves>
__device__ __forceinline__ void weigh_tile(const RawScores& rule, int rows, const float (&largest)[2],
                                           float (&scores)[kScoreParts][4], const DecodeState& s);

// - operands: args.attention.qkv [tokens, columns], whose first pages.singles tokens are a
//   sequence each; pages.keys and .values [pages, page_size, kv_heads, head_dim] of type E, T or F8; out [tokens, heads
//   head_dim]; all else of type T.
// - block: (x, y): up to 16 query heads of one key-value head of one sequence, as the rows of one tile, and of the
//   splits of its keys every gridDim.y-th from y on (DecodeBlock); blockDim.x / 32 warps, a power of two up to
//   kMaxWarps, process a tile of 64 keys each, a round at a time.
// - thread: lane l of a warp has scores and output of rows l / 4 and l / 4 + 8, as mma.sync leaves them; `halves` 1:
//   rows beyond the eighth are not used, and their work is left out.
// - alignment: `vector`: rows of a head, qkv, keys and values on 16 bytes; otherwise any. width: head_dim rounded up to
//   64, 128 or 256.
// - registers: not limited for 16-bit keys and values, because shared memory leaves no room for more blocks on an SM.
template <class T, class E, int width, int halves, bool vector, bool windowed>
__global__ void __launch_bounds__(kMaxWarps<width> * 32, std::is_same_v<E, F8> ? kMinBlocks : 1)
    cached_attention_decode_mma_kernel(CachedAttentionDecodeArgs args) {
  pdl_trigger();
  using Step = KeyStep<T, width>;
  extern __shared__ __align__(128) char shared[];
  const AttentionArgs& a = args.attention;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const DecodeBlock place(a, kRows);
  const DecodeRows block = place.rows_of<width, windowed>(args, kRows);
  using Stream = TileStream<T, E, width, vector>;
  Stream stream(a, block, place.kv_head, shared + warp * Stream::kBufferBytes);
  const int rows = block.rows, end_tile = stream.end_tile;
  char* const queries = shared + warps * Stream::kBufferBytes;
  const DecodeState s = decode_state(reinterpret_cast<float*>(queries + rows * width * 2), rows, width, kLanes, warps);
  const RawScores rule(a.scale);
  const int first_split = block.earliest_split() + static_cast<int>(blockIdx.y);
  int tile = stream.tile_from(first_split, block.first_tile(first_split) + warp), ready[2];
  stream.find_rows(tile < end_tile ? tile : end_tile, ready);
  pdl_wait();
  if (block.idle()) return;

  stream.load_queries(queries);
  if (tile < end_tile) stream.load_keys(tile, ready);
  commit_copies();
  if (tile < end_tile) stream.load_values(tile, ready);
  commit_copies();
  const int row0 = lane / 4;
  const uint32_t query_base = shared_address(queries);
  const int query_row = min(lane & 15, rows - 1);  // rows after the last are unused copies of it

  for (int split = first_split; split < block.end_split(); split += block.step()) {
    const int split_start = block.first_tile(split), split_end = min(end_tile, (split + 1) * kSplitTiles);
    float largest[2] = {-INFINITY, -INFINITY};  // the rows' largest scores before this round
    for (int round = split_start; round < split_end; round += warps) {
      const int tiles = min(warps, split_end - round);  // the tiles of this round; this warp's is `tile` if it has one
      const bool mine = warp < tiles;
      const int next = mine ? stream.tile_after(tile) : tile;
      if (mine && next < end_tile) stream.find_rows(next, ready);
      wait_copies<1>();  // until the keys have arrived
      if (split == first_split && round == split_start)
        __syncthreads();  // so that every thread's part of the queries has arrived, too
      else
        __syncwarp();
      float scores[kScoreParts][4];
      if (mine) {
        stream.multiply_keys(query_base, query_row, scores);
        __syncwarp();
        if (next < end_tile) stream.load_keys(next, ready);
        mask_tile<Step>(block, tile * kKeyTile, scores);
        store_largest<Step, halves>(scores, rows, s);
      }
      commit_copies();
      __syncthreads();  // so that the round's largest scores are stored and the last round's parts have joined
      if (mine) {
        weigh_tile<Step, halves>(rule, rows, largest, scores, s);
        wait_copies<1>();  // until the values have arrived
        __syncwarp();
        stream.template multiply_values<halves>(scores, PartStore<width>{s, rows, warp, row0});
        __syncwarp();
        if (next < end_tile) stream.load_values(next, ready);
        tile = next;
      }
      commit_copies();
#pragma unroll
      for (int r = 0; r < halves; ++r)
        largest[r] = running_largest(s, rows, min(row0 + 8 * r, rows - 1), tiles - 1, largest[r]).with;
      __syncthreads();  // so that the round's parts are stored
      join_tiles<width, kLanes>(s, rows, tiles, round == split_start);
    }
    if (warp == 0 && lane % 4 == 0)
#pragma unroll
      for (int r = 0; r < halves; ++r)
        if (row0 + 8 * r < rows) s.largest[row0 + 8 * r] = largest[r];
    __syncthreads();
    finish_split<T, width, kLanes>(args, block, s, rule, split);
  }
  wait_copies<0>();
}

template <class E, int width>
constexpr int shared_bytes(int rows, int warps, bool earlier) {
  return rows * width * 2 + warps * 2 * kKeyTile * width * static_cast<int>(sizeof(E)) +
         decode_floats(rows, width, kLanes, warps, earlier) * static_cast<int>(sizeof(float));
}

// Sets the scores of a tile's keys that the rows do not read to -infinity; `begin` is the tile's first key.
template <class Step>
__device__ __forceinline__ void mask_tile(const DecodeRows& block, int begin, float (&scores)[kScoreParts][4]) {
  const int last = block.keys - 1, first = block.first_key();
  if (begin + kKeyTile > block.keys) Step::mask(begin, {last, last}, scores);
  if (begin < first) Step::mask_before(begin, {first, first}, scores);
}

// Stores the largest score of each of the warp's rows in its tile.
template <class Step, int halves>
__device__ __forceinline__ void store_largest(const float (&scores)[kScoreParts][4], int rows, const DecodeState& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = lane / 4;
#pragma unroll
  for (int r = 0; r < halves; ++r) {
    const float most = Step::largest(scores, r);
    if (lane % 4 == 0 && row0 + 8 * r < rows) s.tile_largest[warp * rows + row0 + 8 * r] = most;
  }
}

// Turns scores into weights relative to the largest score up to this tile. Stores the sums of the weights, and the
// factors by which the results of earlier tiles shrink. `largest` are the rows' largest scores before this round.
template <class Step, int halves>
__device__ __forceinline__ void weigh_tile(const RawScores& rule, int rows, const float (&largest)[2],
                                           float (&scores)[kScoreParts][4], const DecodeState& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = lane / 4;
  float with[2] = {};
#pragma unroll
  for (int r = 0; r < halves; ++r) {
    const int row = min(row0 + 8 * r, rows - 1);
    const Running running = running_largest(s, rows, row, warp, largest[r]);
    with[r] = running.with;
    if (lane % 4 == 0 && row == row0 + 8 * r) s.shrinks[warp * rows + row] = rule.weight(running.before, running.with);
  }
  float sums[2];
  Step::template weigh<halves>(scores, with, rule.log2_scale, sums);
#pragma unroll
  for (int r = 0; r < halves; ++r)
    if (row0 + 8 * r < rows) s.sums[(warp * rows + row0 + 8 * r) * kLanes + lane % 4] = sums[r];
}

template <class T, class E, int width, int halves, bool vector, bool windowed>
void launch_kernel(cudaStream_t stream, const CachedAttentionDecodeArgs& args) {
  const AttentionArgs& a = args.attention;
  const int rows = std::min(kRows, a.heads / a.kv_heads);
  const DecodeGrid grid = decode_grid(args, kRows, width);
  const int64_t units = a.pages.singles * a.kv_heads * grid.groups * grid.workers;
  const int64_t tiles = std::min<int64_t>(kSplitTiles, max_parts(args, kKeyTile));
  const auto resident = [&](int warps) {  // blocks of `warps` that run at a time
    return args.multiprocessors *
           std::min(kSharedPerProcessor / shared_bytes<E, width>(rows, warps, true), kResidentWarps<E, width> / warps);
  };
  const auto rounds = [&](int warps) { return ceil_divide(units, resident(warps)) * ceil_divide(tiles, warps); };
  const auto may_double = [&](int warps) {
    return warps < kMaxWarps<width> && warps < tiles &&
           shared_bytes<E, width>(rows, 2 * warps, true) <= kMaxSharedBytes - kStaticBytes;
  };
  // Doubles the warps of a block until they fill the GPU, but not beyond the tiles of a split. Then as long as this
  // leaves fewer processors without a block at the end.
  int warps = 1;
  while (may_double(warps) && units * warps < resident(1)) warps *= 2;
  while (may_double(warps) && rounds(2 * warps) < rounds(warps)) warps *= 2;
  const int bytes = shared_bytes<E, width>(rows, warps, grid.alone);
  constexpr auto kernel = cached_attention_decode_mma_kernel<T, E, width, halves, vector, windowed>;
  constexpr int kMaxBytes =
      std::min(shared_bytes<E, width>(kRows, kMaxWarps<width>, true), kMaxSharedBytes - kStaticBytes);
  allow_shared_bytes<kernel, kMaxBytes>(std::min(shared_bytes<E, width>(rows, kMaxWarps<width>, true), kMaxBytes));
  launch_dependent("cached_attention_decode_mma_kernel", kernel, {grid.blocks(a), warps * 32, bytes}, stream, args);
}

template <class T, class E, int width>
void launch_width(cudaStream_t stream, const CachedAttentionDecodeArgs& args) {
  const AttentionArgs& a = args.attention;
  if (a.head_dim * sizeof(E) % 16 != 0 || a.columns % 8 != 0 || !on_16_bytes(a.qkv) || !on_16_bytes(a.pages.keys) ||
      !on_16_bytes(a.pages.values))
    return launch_kernel<T, E, width, 2, false, true>(stream, args);
  with_constant(a.window != kNoWindow, [&](auto windowed) {
    if (a.heads / a.kv_heads <= 8) return launch_kernel<T, E, width, 1, true, windowed()>(stream, args);
    launch_kernel<T, E, width, 2, true, windowed()>(stream, args);
  });
}

}  // namespace

void launch_cached_attention_decode_mma(cudaStream_t stream, const CachedAttentionDecodeArgs& args, DType act) {
  if (args.attention.pages.singles == 0) return;
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    with_width(args.attention.head_dim, [&](auto width) {
      if (args.attention.pages.key_scales != nullptr) return launch_width<T, F8, width()>(stream, args);
      launch_width<T, T, width()>(stream, args);
    });
  });
}

}  // namespace lfm2
