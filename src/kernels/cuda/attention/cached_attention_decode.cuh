// What the two kernels for sequences with one new token share (cached_attention_decode_mma.cu,
// cached_attention_decode_simt.cu): the state of a block, how results of tiles and of splits are joined, and how a
// launch cuts its rows.
//
// A block has some query heads of one key-value head (its rows), and every gridDim.y-th split of that head's keys, or
// all splits (DecodeRows::alone). Within a split, each of the block's workers (a warp, or 16 threads) processes one
// tile of keys at a time, and their results are joined in the order of the tiles. So the bits are those of the kernels
// over tiles of queries, where one warp processes all tiles of keys.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/common/dependent_launch.cuh"

namespace lfm2 {

// Blocks pass the result of a row's split to each other through args.partials: `width` floats of output, then the
// largest score, the sum of the weights and two floats that align the next result to 16 bytes. Only sequences of
// several splits have results there, [heads, splits] each, in the order of the sequences.
constexpr int kPartialTail = 4;

// What a block keeps in shared memory for its `rows` query rows. A weight is e^(score - a largest score). The output is
// the weighted sum of the values, and is divided by the sum of the weights at the very end. Each of `lanes` threads has
// a part of a row's sum of weights.
struct DecodeState {
  // The tiles of this split that have been joined.
  float* out;      // [rows, width]
  float* totals;   // [rows, lanes]: sums of weights
  float* largest;  // [rows]: largest scores
  // The tile that each worker has just finished.
  float* parts;         // [workers, rows, width]: weighted sums of its values
  float* sums;          // [workers, rows, lanes]: sums of its weights
  float* tile_largest;  // [workers, rows]: largest scores
  float* shrinks;       // [workers, rows]: factors for all earlier tiles, whose largest score was lower
  // The earlier splits, already merged; only if a block may have to process several splits alone (DecodeGrid).
  float* earlier;       // [rows, width]: output
  float* earlier_rows;  // [rows, 2]: largest score and sum of weights
};

// The number of floats in a DecodeState; `lanes` divides 32.
constexpr int decode_floats(int rows, int width, int lanes, int workers, bool earlier) {
  return rows * (width + lanes + 1) + workers * rows * (width + 1 + lanes + 1) + (earlier ? rows * (width + 2) : 0) +
         64;
}
__device__ inline DecodeState decode_state(float* memory, int rows, int width, int lanes, int workers) {
  DecodeState s{};
  const auto allocate = [&](int floats) {
    float* taken = memory;
    memory += floats;
    return taken;
  };
  s.out = allocate(rows * width);  // arrays that must be on 16 bytes come first
  s.parts = allocate(workers * rows * width);
  s.totals = allocate(rows * lanes);
  s.sums = allocate(workers * rows * lanes);
  s.largest = allocate((rows + 3) / 4 * 4);
  s.shrinks = allocate((workers * rows + 3) / 4 * 4);
  s.tile_largest = allocate((workers * rows + 3) / 4 * 4);
  s.earlier = allocate(rows * width);  // this array and the next need not exist
  s.earlier_rows = allocate(2 * rows);
  return s;
}

// The number of splits in which a token at `position` has keys.
template <bool windowed>
__device__ int splits_read(const AttentionArgs& a, int position) {
  return splits_of(position + 1) - window_start<windowed>(a, position) / kSplitKeys;
}

// The block's rows are the query heads from first_head on, of the sequence's only token. They read the positions
// [first_key(), keys).
struct DecodeRows {
  int64_t token;
  int first_head, rows;
  int window, keys;
  int splits_before;  // splits in args.partials before those of this sequence; negative: it has none there

  // Whether one block, that with blockIdx.y 0, processes all splits of the rows.
  __device__ bool alone() const { return splits_before < 0; }
  // The block's splits are every step-th from the blockIdx.y-th on; an idle block has none.
  __device__ int step() const { return alone() ? 1 : static_cast<int>(gridDim.y); }
  __device__ bool idle() const { return static_cast<int>(blockIdx.y) >= (alone() ? 1 : splits()); }

  __device__ int first_key() const { return window == kNoWindow ? 0 : max(keys - window, 0); }
  __device__ int earliest_split() const { return first_key() / kSplitKeys; }
  __device__ int end_split() const { return splits_of(keys); }
  __device__ int splits() const { return end_split() - earliest_split(); }
  // The first tile of a split that the rows read.
  __device__ int first_tile(int split) const { return max(split * kSplitTiles, first_key() / kKeyTile); }
};

// out = fma(out, shrink, part) for the tiles of this round, in their order; the same for the totals.
template <int width, int lanes>
__device__ void join_tiles(const DecodeState& s, int rows, int tiles, bool first_round) {
#pragma unroll 1
  for (int e = threadIdx.x; e < rows * (width / 4); e += blockDim.x) {
    const int row = e / (width / 4);
    float4 out = first_round ? float4{0, 0, 0, 0} : reinterpret_cast<const float4*>(s.out)[e];
#pragma unroll 2
    for (int tile = 0; tile < tiles; ++tile) {
      const float shrink = s.shrinks[tile * rows + row];
      const float4 part = reinterpret_cast<const float4*>(s.parts)[tile * rows * (width / 4) + e];
      out = {fmaf(out.x, shrink, part.x), fmaf(out.y, shrink, part.y), fmaf(out.z, shrink, part.z),
             fmaf(out.w, shrink, part.w)};
    }
    reinterpret_cast<float4*>(s.out)[e] = out;
  }
#pragma unroll 1
  for (int e = threadIdx.x; e < rows * lanes; e += blockDim.x) {
    const int row = e / lanes;
    float total = first_round ? 0 : s.totals[e];
#pragma unroll 2
    for (int tile = 0; tile < tiles; ++tile)
      total = fmaf(total, s.shrinks[tile * rows + row], s.sums[tile * rows * lanes + e]);
    s.totals[e] = total;
  }
}

// The sum over a row's lanes, added as the shuffles of the kernels over query tiles add them.
template <int lanes>
__device__ float row_total(const float* totals) {
  if constexpr (lanes == 1)
    return totals[0];
  else
    return row_total<lanes / 2>(totals) + row_total<lanes / 2>(totals + lanes / 2);
}

template <class T>
__device__ void store_out(const AttentionArgs& args, const DecodeRows& rows, int row, int column, float4 out,
                          float total) {
  T* target = static_cast<T*>(args.out) + (rows.token * args.heads + rows.first_head + row) * args.head_dim + column;
  const float values[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < args.head_dim) target[i] = rounded<T>(values[i] / total);
}

__device__ inline float4 merged(float4 x, float x_weight, float4 y, float y_weight) {
  return {merged(x.x, x_weight, y.x, y_weight), merged(x.y, x_weight, y.y, y_weight),
          merged(x.z, x_weight, y.z, y_weight), merged(x.w, x_weight, y.w, y_weight)};
}

// For a block that processes all splits of its rows alone: merges a finished split into the earlier ones, which it
// keeps in shared memory, and writes the output after the last split. Splits are counted from the earliest one. Ends
// with a barrier except after the last split.
template <class T, int width, int lanes, class Rule>
__device__ __forceinline__ void merge_in_block(const CachedAttentionDecodeArgs& args, const DecodeRows& rows,
                                               const DecodeState& s, const Rule& rule, int split, int splits) {
  constexpr int kFours = width / 4;
#pragma unroll 1
  for (int e = threadIdx.x; e < rows.rows * kFours; e += blockDim.x) {
    const int row = e / kFours;
    float4 out = reinterpret_cast<const float4*>(s.out)[e];
    float total = row_total<lanes>(s.totals + row * lanes);
    if (split > 0) {
      const float before = s.earlier_rows[2 * row], now = s.largest[row], most = fmaxf(before, now);
      const float weights[2] = {rule.weight(before, most), rule.weight(now, most)};
      out = merged(reinterpret_cast<const float4*>(s.earlier)[e], weights[0], out, weights[1]);
      total = merged(s.earlier_rows[2 * row + 1], weights[0], total, weights[1]);
    }
    if (split + 1 == splits)
      store_out<T>(args.attention, rows, row, e % kFours * 4, out, total);
    else
      reinterpret_cast<float4*>(s.earlier)[e] = out;
  }
  if (split + 1 == splits) return;
  __syncthreads();
  for (int row = threadIdx.x; row < rows.rows; row += blockDim.x) {
    float most = s.largest[row], total = row_total<lanes>(s.totals + row * lanes);
    if (split > 0) {
      const float before = s.earlier_rows[2 * row], now = most;
      most = fmaxf(before, now);
      total = merged(s.earlier_rows[2 * row + 1], rule.weight(before, most), total, rule.weight(now, most));
    }
    s.earlier_rows[2 * row] = most;
    s.earlier_rows[2 * row + 1] = total;
  }
  __syncthreads();
}

// The place of the result of a row's split, counted from the earliest one, in args.partials.
template <int width>
__device__ __forceinline__ float* partial_of(const CachedAttentionDecodeArgs& args, const DecodeRows& rows, int row,
                                             int split) {
  return args.partials + (rows.splits_before * args.attention.heads + (rows.first_head + row) * rows.splits() + split) *
                             (width + kPartialTail);
}

// Writes the results of a split to args.partials, where the block that ends last reads them.
template <int width, int lanes>
__device__ __forceinline__ void publish_split(const CachedAttentionDecodeArgs& args, const DecodeRows& rows,
                                              const DecodeState& s, int split) {
  constexpr int kFours = width / 4;
#pragma unroll 1
  for (int e = threadIdx.x; e < rows.rows * kFours; e += blockDim.x) {
    const int row = e / kFours;
    reinterpret_cast<float4*>(partial_of<width>(args, rows, row, split))[e % kFours] =
        reinterpret_cast<const float4*>(s.out)[e];
    if (e % kFours == 0)
      *reinterpret_cast<float2*>(partial_of<width>(args, rows, row, split) + width) = {
          s.largest[row], row_total<lanes>(s.totals + row * lanes)};
  }
}

// Counts the published splits of the block's rows. Returns true, to every thread, in the block that published the last
// one; that block then sees what all blocks have written.
__device__ __forceinline__ bool published_last(const CachedAttentionDecodeArgs& args, int splits) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t& counter = args.counters[blockIdx.x];
    last = atomicAdd(&counter, 1) == splits - 1;
    if (last) counter = 0;  // for the next launch
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
  return true;
}

// Merges the published splits of the block's rows, in their order, and writes the output.
template <class T, int width, class Rule>
__device__ __forceinline__ void merge_published(const CachedAttentionDecodeArgs& args, const DecodeRows& rows,
                                                const Rule& rule, int splits) {
  constexpr int kFours = width / 4, kStride = width + kPartialTail;
#pragma unroll 1
  for (int e = threadIdx.x; e < rows.rows * kFours; e += blockDim.x) {
    const int row = e / kFours;
    const float* from = partial_of<width>(args, rows, row, 0);
    float4 out = __ldcg(reinterpret_cast<const float4*>(from) + e % kFours);
    float2 tail = __ldcg(reinterpret_cast<const float2*>(from + width));
#pragma unroll 8
    for (int at = 1; at < splits; ++at) {
      const float4 next_out = __ldcg(reinterpret_cast<const float4*>(from + at * kStride) + e % kFours);
      const float2 next = __ldcg(reinterpret_cast<const float2*>(from + at * kStride + width));
      const float most = fmaxf(tail.x, next.x);
      const float weights[2] = {rule.weight(tail.x, most), rule.weight(next.x, most)};
      out = merged(out, weights[0], next_out, weights[1]);
      tail = {most, merged(tail.y, weights[0], next.y, weights[1])};
    }
    store_out<T>(args.attention, rows, row, e % kFours * 4, out, tail.y);
  }
}

// Merges or publishes a split all of whose tiles have been joined. Call this after a barrier. Ends with a barrier
// unless the block is done with its rows or shares them with other blocks.
template <class T, int width, int lanes, class Rule>
__device__ void finish_split(const CachedAttentionDecodeArgs& args, const DecodeRows& rows, const DecodeState& s,
                             const Rule& rule, int split) {
  const int splits = rows.splits(), place = split - rows.earliest_split();
  if (rows.alone()) return merge_in_block<T, width, lanes>(args, rows, s, rule, place, splits);
  publish_split<width, lanes>(args, rows, s, place);
  if (published_last(args, splits)) merge_published<T, width>(args, rows, rule, splits);
}

// The largest score of a row before the worker's tile, and with that tile. The workers' largest scores must have been
// stored in s.tile_largest before a barrier.
struct Running {
  float before, with;
};
__device__ inline Running running_largest(const DecodeState& s, int rows, int row, int worker, float before_round) {
  Running running{before_round, before_round};
#pragma unroll 2
  for (int other = 0; other <= worker; ++other) {
    running.before = running.with;
    running.with = fmaxf(running.with, s.tile_largest[other * rows + row]);
  }
  return running;
}

// How a launch cuts its rows. Grid x counts the sequences, in each its key-value heads, and in each of those the groups
// of its query heads. Grid y counts the blocks that share the splits of a row. Blocks without keys come last, as do the
// later splits of long sequences.
struct DecodeGrid {
  int groups;   // number of groups into which the query heads of a key-value head are cut
  int workers;  // blocks that share the splits of a row, unless one processes them alone
  bool alone;   // whether a block may have to process several splits alone
  dim3 blocks(const AttentionArgs& a) const {
    return dim3(static_cast<unsigned>(a.pages.singles * a.kv_heads * groups), static_cast<unsigned>(workers));
  }
};
// The number of blocks that a launch aims for. They are more than fill any GPU, so that the splits of a few long
// sequences among short ones run side by side. They are not more than this, because blocks without keys cost little,
// but not nothing.
constexpr int64_t kDecodeBlocks = 32768;
static_assert(kDecodeBlocks <= kDecodeCounters);  // so that wherever blocks share splits, blockIdx.x has a counter

// The most parts of `size` keys, counted from the start of the sample, in which a token may have keys.
inline int64_t max_parts(const CachedAttentionDecodeArgs& args, int64_t size) {
  const int64_t of_window = (args.attention.window + 2 * size - 2) / size;
  return std::min(ceil_divide(args.max_length, size), of_window);
}

inline DecodeGrid decode_grid(const CachedAttentionDecodeArgs& args, int max_rows, int width) {
  const AttentionArgs& a = args.attention;
  const int64_t groups = ceil_divide(a.heads / a.kv_heads, max_rows), units = a.pages.singles * a.kv_heads * groups;
  const int64_t splits = max_parts(args, kSplitKeys);
  const int64_t workers = std::min(splits, std::max<int64_t>(kDecodeBlocks / units, 1));
  const bool all_fit = a.pages.singles * a.heads * splits * (width + kPartialTail) <= args.partial_floats;
  return {static_cast<int>(groups), static_cast<int>(workers), splits > 1 && (workers == 1 || !all_fit)};
}

// DecodeRows::splits_before of a sequence with this many splits: the number of splits of all earlier sequences that
// have several. Negative if one block processes the rows alone: if there is only one block or one split, or if
// args.partials has no room for the sequence's results. Then it has no room for later sequences either, however short
// they are. So all blocks of a row come to the same result without asking each other. All lanes of a warp call this.
template <int width, bool windowed>
__device__ __forceinline__ int splits_before(const CachedAttentionDecodeArgs& args, int64_t sequence, int splits) {
  if (gridDim.y == 1 || splits == 1 || static_cast<int>(blockIdx.y) >= splits) return -1;
  int before = 0;
#pragma unroll 8
  for (int64_t s = threadIdx.x % 32; s < sequence; s += 32) {
    const int others = splits_read<windowed>(args.attention, args.attention.positions[s]);
    before += others > 1 ? others : 0;
  }
  before = __reduce_add_sync(0xffffffffu, before);
  const int64_t end = (static_cast<int64_t>(before) + splits) * args.attention.heads * (width + kPartialTail);
  return end <= args.partial_floats ? before : -1;
}

// The work of a block: the sequence, its key-value head, and the first of that head's query heads.
struct DecodeBlock {
  int64_t sequence;
  int kv_head, first_row;
  __device__ DecodeBlock(const AttentionArgs& a, int max_rows) {
    const int groups = (a.heads / a.kv_heads + max_rows - 1) / max_rows;
    const unsigned per_sequence = static_cast<unsigned>(a.kv_heads * groups), place = blockIdx.x % per_sequence;
    sequence = blockIdx.x / per_sequence;
    kv_head = static_cast<int>(place) / groups;
    first_row = static_cast<int>(place) % groups * max_rows;
  }
  // All lanes of a warp call this. It reads nothing that a kernel writes.
  template <int width, bool windowed>
  __device__ DecodeRows rows_of(const CachedAttentionDecodeArgs& args, int max_rows) const {
    const AttentionArgs& a = args.attention;
    const int group = a.heads / a.kv_heads, position = a.positions[sequence];
    return {sequence,
            kv_head * group + first_row,
            min(max_rows, group - first_row),
            windowed ? a.window : kNoWindow,
            position + 1,
            splits_before<width, windowed>(args, sequence, splits_read<windowed>(a, position))};
  }
};

}  // namespace lfm2
