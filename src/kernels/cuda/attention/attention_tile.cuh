// How the attention kernels cut a batch into tiles of queries, without asking the host: a block looks at a window of
// tokens and processes the tiles that start in it. Also how they cut a row's keys: the bits of a row follow from its
// keys alone, whichever kernel and tile computes it.
//   keys of a row:  | tile 0 | tile 1 | ... | tile 15 | tile 16 | ...
//                   |------------- split 0 -----------|---- split 1 ...
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/common/fp8_cache.cuh"

namespace lfm2 {

constexpr int kStaticBytes = 128;  // static shared memory of an attention kernel, at most
constexpr int kKeyTile = 64;       // keys of one step of the online softmax, counted from the start of the sample
// The keys of a split. Each split is a separate online softmax, and a row's splits are merged in order afterwards, so
// that different blocks can compute the splits of a long row.
constexpr int kSplitKeys = 1024, kSplitTiles = kSplitKeys / kKeyTile;

__host__ __device__ inline int splits_of(int keys) { return (keys + kSplitKeys - 1) / kSplitKeys; }

// The first position that a token reads. Tiles and splits are counted from the start of the sample with a window, too:
// those that lie wholly before the window are left out. Kernels that are not `windowed` know no window.
template <bool windowed>
__device__ int window_start(const AttentionArgs& args, int position) {
  return windowed ? max(position - args.window + 1, 0) : 0;
}

// The largest score of a row that has seen no key. With a window, a tile of keys may come wholly before the first key
// of some of its rows: their largest score then stays finite, and those keys get weights of 0 instead of NaN.
template <bool windowed>
__device__ float no_score(const AttentionArgs& args) {
  return windowed && args.window != kNoWindow ? -1e38f : -INFINITY;
}

// Merges a value x of the earlier split with the value y of the later one. The weights relate both to the larger of
// their largest scores.
__device__ inline float merged(float x, float x_weight, float y, float y_weight) {
  return fmaf(x, x_weight, __fmul_rn(y, y_weight));
}

// Two rules for the weight of a score relative to the largest score. RawScores: x is a product of query and key, and
// the weight is 2^(x log2_scale), with log2_scale = log2(e) / sqrt(head_dim). ScaledScores: x is scaled already, and
// the weight is e^x.
struct RawScores {
  float log2_scale;
  __device__ explicit RawScores(float scale) : log2_scale(scale * 1.4426950408889634f) {}
  __device__ float weight(float score, float largest) const { return power_of_two((score - largest) * log2_scale); }
};
struct ScaledScores {
  __device__ float weight(float score, float largest) const { return expf(score - largest); }
};

// sum + a b over four elements of the head, in order: a step of a score in fp32.
__device__ inline float dot(float sum, float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// A tile of queries. Its rows are the query heads of one key-value head at some consecutive positions of a sample: row
// r is head r % group at position r / group of the tile.
struct QueryTile {
  int64_t first_token;  // the first token of the tile
  int first_position;   // position of first_token in its sample
  int positions;        // number of positions in the tile
  int group;            // query heads of one key-value head
  int kv_head;
  int sequence;  // only set with pages

  __device__ int64_t sample_start() const { return first_token - first_position; }
  __device__ int keys() const { return first_position + positions; }
  __device__ bool row_valid(int row) const { return row / group < positions; }
  __device__ int row_position(int row) const { return first_position + row / group; }
};

// Whether no result of the tile is needed, because all of its positions precede the last `output_tokens` ones of their
// sequence (Batch::output_tokens).
template <bool paged>
__device__ bool is_not_output(const AttentionArgs& args, const QueryTile& tile) {
  const int ahead = tile.positions - 1 + args.output_tokens;
  if (args.output_tokens == 0 || tile.first_token + ahead >= args.tokens) return false;
  if constexpr (paged) return args.pages.sequence_of[tile.first_token + ahead] == tile.sequence;
  return args.positions[tile.first_token + ahead] == tile.first_position + ahead;
}

// The places of the parts in a row of qkv, in elements.
struct QkvColumns {
  int64_t stride, key, value;  // from a token to the next; where key heads and value heads begin
  __device__ explicit QkvColumns(const AttentionArgs& args)
      : stride(args.columns),
        key(static_cast<int64_t>(args.heads) * args.head_dim),
        value(static_cast<int64_t>(args.heads + args.kv_heads) * args.head_dim) {}
};

// The row of the cache that holds a position of a sequence. Rows are counted in int32; CudaOps checks that they fit.
__device__ inline int cache_row(const KeyPages& pages, int64_t sequence, int position) {
  const int page = position / pages.page_size;
  return pages.page_table[sequence * pages.max_pages + page] * pages.page_size + (position - page * pages.page_size);
}

// A head's keys or values at one position: elements of a compute type, or fp8 with their scale.
template <class E>
struct HeadRow {
  const E* elements;  // null: none
  float scale;        // only of fp8
};

// The keys, or the values, of one key-value head in the cache: elements of type E, a compute type or F8.
template <class E>
struct CachedHead {
  const E* elements;
  const uint8_t* scales;  // for fp8, those of all key-value heads
  int64_t stride;         // elements from a row to the next
  int kv_heads, kv_head;

  __device__ CachedHead(const AttentionArgs& args, const void* all, const uint8_t* all_scales, int head)
      : elements(static_cast<const E*>(all) + static_cast<int64_t>(head) * args.head_dim),
        scales(all_scales),
        stride(static_cast<int64_t>(args.kv_heads) * args.head_dim),
        kv_heads(args.kv_heads),
        kv_head(head) {}
  __device__ int exponent(int64_t row) const { return scales[row * kv_heads + kv_head]; }
  __device__ HeadRow<E> row(int64_t number) const {
    if constexpr (std::is_same_v<E, F8>)
      return {elements + number * stride, scale_of(exponent(number))};
    else
      return {elements + number * stride, 1};
  }
};

// The keys and values of a tile's sample: in qkv, or, with pages, in the cache, of elements of type E.
template <class E, bool paged, bool windowed>
struct KeyRows {
  const QueryTile& tile;
  const KeyPages& pages;
  const int first;  // the first position that the tile reads
  CachedHead<E> keys, values;

  __device__ KeyRows(const AttentionArgs& args, const QueryTile& query_tile)
      : tile(query_tile),
        pages(args.pages),
        first(window_start<windowed>(args, tile.first_position)),
        keys(args, pages.keys, pages.key_scales, tile.kv_head),
        values(args, pages.values, pages.value_scales, tile.kv_head) {
    if constexpr (!paged) {
      const QkvColumns columns(args);
      const E* start = static_cast<const E*>(args.qkv) + tile.sample_start() * columns.stride +
                       static_cast<int64_t>(tile.kv_head) * args.head_dim;
      keys.stride = values.stride = columns.stride;
      keys.elements = start + columns.key;
      values.elements = start + columns.value;
    }
  }
  // The row of a position in `keys` and `values`. The position must be in the sample. Positions before `first`, whose
  // pages the sequence may no longer have, are replaced by it: their weights are 0.
  __device__ int64_t row(int position) const {
    if constexpr (paged) return cache_row(pages, tile.sequence, windowed ? max(position, first) : position);
    return position;
  }
};

// Four elements of a row of head_dim, with zeros beyond its end. `vector`: head_dim in fours, rows on 16 bytes (fp8: on
// four).
__device__ inline float4 load_four(const HeadRow<float>& row, int column, int head_dim, bool vector) {
  if (vector) return column < head_dim ? *reinterpret_cast<const float4*>(row.elements + column) : float4{0, 0, 0, 0};
  float four[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) four[e] = column + e < head_dim ? row.elements[column + e] : 0;
  return {four[0], four[1], four[2], four[3]};
}
__device__ inline float4 load_four(const HeadRow<F8>& row, int column, int head_dim, bool vector) {
  uint32_t four = 0;
  if (vector) {
    if (column < head_dim) four = *reinterpret_cast<const uint32_t*>(row.elements + column);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < head_dim) four |= static_cast<uint32_t>(row.elements[column + e].bits) << 8 * e;
  }
  return from_fp8(four, row.scale);
}

// Calls work(tile) for every tile with output tokens that starts in this block's window of `tile_positions` (at most
// 128) tokens. In whole samples, tiles start at fixed positions; with pages, at fixed distances from the sequence's
// first token in the batch. The first blocks process the last windows, which in a long sample have the most keys. All
// threads of the block call this.
template <bool paged, class Work>
__device__ void for_each_query_tile(const AttentionArgs& args, int tile_positions, Work&& work) {
  __shared__ uint32_t starts[4];
  const int64_t first = paged ? args.pages.singles : 0;
  const int64_t window = first + static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * tile_positions;
  const int t = threadIdx.x;
  const auto starts_tile = [&](int64_t token) {
    if constexpr (paged) return (token - args.pages.offsets[args.pages.sequence_of[token]]) % tile_positions == 0;
    return args.positions[token] % tile_positions == 0;
  };
  const unsigned ballot =
      __ballot_sync(0xffffffffu, t < tile_positions && window + t < args.tokens && starts_tile(window + t));
  if (t % 32 == 0 && t < 128) starts[t / 32] = ballot;
  __syncthreads();
  for (int word = 0; word < 4; ++word)
    for (uint32_t left = starts[word]; left != 0; left &= left - 1) {
      QueryTile tile;
      tile.first_token = window + word * 32 + __ffs(left) - 1;
      tile.first_position = args.positions[tile.first_token];
      tile.sequence = paged ? args.pages.sequence_of[tile.first_token] : 0;
      const int64_t token = tile.first_token + t;
      const auto same_sample = [&] {
        if constexpr (paged) return args.pages.sequence_of[token] == tile.sequence;
        return args.positions[token] == tile.first_position + t;
      };
      // After this count, which is a barrier, the last tile's shared memory is free.
      tile.positions = __syncthreads_count(t < tile_positions && token < args.tokens && same_sample());
      tile.group = args.heads / args.kv_heads;
      tile.kv_head = blockIdx.y;
      if (!is_not_output<paged>(args, tile)) work(tile);
    }
}

// Calls f(std::integral_constant<int, width>{}), where width is head_dim rounded up to 64, 128 or 256.
template <class F>
void with_width(int head_dim, F&& f) {
  if (head_dim <= 64) return f(std::integral_constant<int, 64>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 128>{});
  f(std::integral_constant<int, 256>{});
}

inline dim3 attention_grid(const AttentionArgs& args, int tile_positions) {
  return dim3(static_cast<unsigned>(ceil_divide(args.tokens - args.pages.singles, tile_positions)),
              static_cast<unsigned>(args.kv_heads));
}

}  // namespace lfm2
