// cached_attention of sequences with one new token, in true fp32: 16 threads process a tile of keys with four query
// heads of its key-value head, and a block processes all tiles of a split at once.
#include "kernels/cuda/attention/cached_attention_decode.cuh"
#include "kernels/cuda/common/shared_memory.cuh"

namespace lfm2 {

namespace {

constexpr int kLanes = 16, kWorkers = kSplitTiles, kThreads = kLanes * kWorkers;
constexpr int kEach = 4;  // query heads of a block; also the keys of a thread, which are 16 apart
constexpr int kScoreStride = kKeyTile + 4;

template <int width>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const DecodeRows& block, float* queries);
template <class E, int width>
__device__ __forceinline__ void multiply_keys(const float* queries, const HeadRow<E> (&key_rows)[kEach], int head_dim,
                                              bool vector, float (&p)[kEach][kEach]);
__device__ __forceinline__ void score_tile(const AttentionArgs& a, const DecodeRows& block, int first_key,
                                           float (&p)[kEach][kEach], const DecodeState& s);
__device__ __forceinline__ void weigh_tile(const ScaledScores& rule, int rows, int tiles, float (&p)[kEach][kEach],
                                           float* weights, const DecodeState& s);
template <class E, int width>
__device__ __forceinline__ void multiply_values(const AttentionArgs& a, const DecodeRows& block,
                                                const CachedHead<E>& values, const int (&cache_rows)[kEach],
                                                int first_key, const float* weights, bool vector, const DecodeState& s);

// - operands: args.attention.qkv [tokens, columns], whose first pages.singles tokens are a
//   sequence each; pages.keys and .values [pages, page_size, kv_heads, head_dim] of type E, float or F8; out [tokens,
//   heads head_dim]; all else fp32.
// - block: (x, y): up to four query heads of one key-value head of one sequence, and of the splits of its keys every
//   gridDim.y-th from y on (DecodeBlock); kWorkers workers of 16 threads process a tile of 64 keys each: a whole split
//   at once.
// - thread: four keys of its worker's tile, 16 apart, against all rows; then of all rows width / 16 columns of the
//   output.
// - alignment: `vector`: head_dim in fours, keys and values on 16 bytes; otherwise any. width: head_dim rounded up to
//   64, 128 or 256.
template <class E, int width, bool windowed>
__global__ void __launch_bounds__(kThreads)
    cached_attention_decode_simt_kernel(CachedAttentionDecodeArgs args, bool vector) {
  pdl_trigger();
  extern __shared__ __align__(16) float shared_floats[];
  const AttentionArgs& a = args.attention;
  const int worker = threadIdx.x / kLanes, tx = threadIdx.x % kLanes;
  const DecodeBlock place(a, kEach);
  const int kv_head = place.kv_head;
  const int64_t sequence = place.sequence;
  const DecodeRows block = place.rows_of<width, windowed>(args, kEach);
  const int rows = block.rows;
  float* const queries = shared_floats;
  float* const weights = queries + kEach * width + worker * kEach * kScoreStride;
  const DecodeState s =
      decode_state(queries + kEach * width + kWorkers * kEach * kScoreStride, rows, width, kLanes, kWorkers);
  const ScaledScores rule;
  const CachedHead<E> keys(a, a.pages.keys, a.pages.key_scales, kv_head),
      values(a, a.pages.values, a.pages.value_scales, kv_head);
  pdl_wait();
  if (block.idle()) return;

  load_queries<width>(a, block, queries);
  __syncthreads();
  for (int split = block.earliest_split() + static_cast<int>(blockIdx.y); split < block.end_split();
       split += block.step()) {
    const int start = block.first_tile(split) * kKeyTile, first_key = start + worker * kKeyTile;
    const int tiles = (min(block.keys, (split + 1) * kSplitKeys) - start + kKeyTile - 1) / kKeyTile;
    float p[kEach][kEach] = {};  // [rows, keys]: products, then scores, then weights
    int cache_rows[kEach];       // for keys that the rows do not read, the first or the last one, masked later
    HeadRow<E> key_rows[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      cache_rows[j] =
          cache_row(a.pages, sequence, max(block.first_key(), min(first_key + tx + 16 * j, block.keys - 1)));
      key_rows[j] = keys.row(cache_rows[j]);
    }
    multiply_keys<E, width>(queries, key_rows, a.head_dim, vector, p);
    score_tile(a, block, first_key, p, s);
    __syncthreads();  // so that the split's largest scores are stored
    weigh_tile(rule, rows, tiles, p, weights, s);
    __syncwarp();
    if (worker < tiles) multiply_values<E, width>(a, block, values, cache_rows, first_key, weights, vector, s);
    if (threadIdx.x < rows) s.largest[threadIdx.x] = running_largest(s, rows, threadIdx.x, tiles - 1, -INFINITY).with;
    __syncthreads();  // so that the split's parts are stored
    join_tiles<width, kLanes>(s, rows, tiles, true);
    __syncthreads();
    finish_split<float, width, kLanes>(args, block, s, rule, split);
  }
}

// Loads the block's query rows into shared memory [kEach, width], with zeros in rows and columns that do not exist.
template <int width>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const DecodeRows& block, float* queries) {
  const QkvColumns columns(a);
  for (int e = threadIdx.x; e < kEach * width; e += kThreads) {
    const int row = e / width, column = e % width;
    queries[e] =
        row < block.rows && column < a.head_dim
            ? static_cast<const float*>(a.qkv)[block.token * columns.stride +
                                               static_cast<int64_t>(block.first_head + row) * a.head_dim + column]
            : 0;
  }
}

// p[i][j] = query row i times the thread's key j.
template <class E, int width>
__device__ __forceinline__ void multiply_keys(const float* queries, const HeadRow<E> (&key_rows)[kEach], int head_dim,
                                              bool vector, float (&p)[kEach][kEach]) {
#pragma unroll 4
  for (int d = 0; d < width; d += 4) {
    float4 query[kEach], key[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      query[i] = *reinterpret_cast<const float4*>(queries + i * width + d);
      key[i] = load_four(key_rows[i], d, head_dim, vector);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j) p[i][j] = dot(p[i][j], query[i], key[j]);
  }
}

// Turns products into scores: scales them, and sets those of keys that the sequence does not have to -infinity. Stores
// each row's largest score.
__device__ __forceinline__ void score_tile(const AttentionArgs& a, const DecodeRows& block, int first_key,
                                           float (&p)[kEach][kEach], const DecodeState& s) {
  const int worker = threadIdx.x / kLanes, tx = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int key = first_key + tx + 16 * j;
      p[i][j] = key < block.keys && key >= block.first_key() ? __fmul_rn(p[i][j], a.scale) : -INFINITY;
      most = fmaxf(most, p[i][j]);
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (tx == 0 && i < block.rows) s.tile_largest[worker * block.rows + i] = most;
  }
}

// Turns scores into weights relative to the largest score up to this tile, in `weights` [kEach, kScoreStride]. Stores
// the sums of the weights, and the factors by which the results of earlier tiles shrink.
__device__ __forceinline__ void weigh_tile(const ScaledScores& rule, int rows, int tiles, float (&p)[kEach][kEach],
                                           float* weights, const DecodeState& s) {
  const int worker = threadIdx.x / kLanes, tx = threadIdx.x % kLanes;
  const int own = min(worker, tiles - 1);  // workers without a tile repeat the last tile's, which is not used
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Running running = running_largest(s, rows, min(i, rows - 1), own, -INFINITY);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      p[i][j] = rule.weight(p[i][j], running.with);
      sum += p[i][j];
      weights[i * kScoreStride + tx + 16 * j] = p[i][j];
    }
    if (i >= rows) continue;
    if (tx == 0) s.shrinks[worker * rows + i] = rule.weight(running.before, running.with);
    s.sums[(worker * rows + i) * kLanes + tx] = sum;
  }
}

// Multiplies the weights with the tile's values, key by key, and stores the result as the worker's part. `cache_rows`
// are the rows of the thread's own keys; the other threads of its worker get them from it.
template <class E, int width>
__device__ __forceinline__ void multiply_values(const AttentionArgs& a, const DecodeRows& block,
                                                const CachedHead<E>& values, const int (&cache_rows)[kEach],
                                                int first_key, const float* weights, bool vector,
                                                const DecodeState& s) {
  constexpr int kColumns = width / 16;  // columns of a thread: runs of 4, 64 apart
  const int worker = threadIdx.x / kLanes, tx = threadIdx.x % kLanes;
  float part[kEach][kColumns] = {};
  const unsigned lanes = 0xffffu << (threadIdx.x & 16u);  // the lanes of this worker
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int keys = min(16, block.keys - first_key - 16 * j);
#pragma unroll 4
    for (int key = 0; key < keys; ++key) {
      const HeadRow<E> value_row = values.row(__shfl_sync(lanes, cache_rows[j], key, 16));
      float weight[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) weight[i] = weights[i * kScoreStride + 16 * j + key];
#pragma unroll
      for (int c = 0; c < kColumns; c += 4) {
        const float4 value = load_four(value_row, c / 4 * 64 + tx * 4, a.head_dim, vector);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          part[i][c] = fmaf(weight[i], value.x, part[i][c]);
          part[i][c + 1] = fmaf(weight[i], value.y, part[i][c + 1]);
          part[i][c + 2] = fmaf(weight[i], value.z, part[i][c + 2]);
          part[i][c + 3] = fmaf(weight[i], value.w, part[i][c + 3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; c += 4)
      if (i < block.rows)
        *reinterpret_cast<float4*>(s.parts + (worker * block.rows + i) * width + c / 4 * 64 + tx * 4) = {
            part[i][c], part[i][c + 1], part[i][c + 2], part[i][c + 3]};
}

template <class E, int width, bool windowed>
void launch_kernel(cudaStream_t stream, const CachedAttentionDecodeArgs& args) {
  const AttentionArgs& a = args.attention;
  const DecodeGrid grid = decode_grid(args, kEach, width);
  constexpr int kFloats =
      kEach * width + kWorkers * kEach * kScoreStride + decode_floats(kEach, width, kLanes, kWorkers, true);
  constexpr int kBytes = kFloats * static_cast<int>(sizeof(float));
  const bool vector = a.head_dim % 4 == 0 && on_16_bytes(a.pages.keys) && on_16_bytes(a.pages.values);
  constexpr auto kernel = cached_attention_decode_simt_kernel<E, width, windowed>;
  allow_shared_bytes<kernel, kBytes>();
  launch_dependent("cached_attention_decode_simt_kernel", kernel, {grid.blocks(a), kThreads, kBytes}, stream, args,
                   vector);
}

}  // namespace

void launch_cached_attention_decode_simt(cudaStream_t stream, const CachedAttentionDecodeArgs& args) {
  if (args.attention.pages.singles == 0) return;
  with_width(args.attention.head_dim, [&](auto width) {
    with_constant(args.attention.window != kNoWindow, [&](auto windowed) {
      if (args.attention.pages.key_scales != nullptr) return launch_kernel<F8, width(), windowed()>(stream, args);
      launch_kernel<float, width(), windowed()>(stream, args);
    });
  });
}

}  // namespace lfm2
