// attention, and the part of cached_attention for several tokens of a sequence, in true fp32: tiles of 64 query rows
// against tiles of 64 keys with an online softmax. Each key tile's products are summed separately before they are added
// to the output.
#include <cmath>

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/common/shared_memory.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256, kRows = 64;
constexpr int kEach = 4;                    // a thread's rows (consecutive), and its keys (16 apart): 16 x 16 threads
constexpr int kScoreStride = kKeyTile + 4;  // rows start 4 banks apart

template <class E, int width, bool paged, bool windowed>
__device__ void attend(const AttentionArgs& args, const QueryTile& tile, float* shared, bool vector);

// - operands: args.qkv [tokens, columns]; without pages keys and values are those of qkv, with
//   pages pages.keys and .values [pages, page_size, kv_heads, head_dim] of type E; out [tokens, heads head_dim]; all
//   fp32, except E, which may be F8.
// - block: (x, y): the tiles of queries that start in a window of `tile_positions` tokens, counted from the end, and
//   key-value head y (for_each_query_tile); the rows of a tile are all query heads of that head at consecutive
//   positions.
// - thread: four rows of the tile, which 16 threads share; of each tile of keys four keys, then width / 16 columns of
//   the output.
// - alignment: `vector`: head_dim in fours, qkv, keys and values on 16 bytes; otherwise any. width: head_dim rounded up
//   to 64, 128 or 256.
template <class E, int width, bool paged, bool windowed>
__global__ void __launch_bounds__(kThreads, width == 64 ? 2 : 1)
    attention_simt_kernel(AttentionArgs args, int tile_positions, bool vector) {
  extern __shared__ __align__(16) float shared_floats[];
  for_each_query_tile<paged>(args, tile_positions, [&](const QueryTile& tile) {
    attend<E, width, paged, windowed>(args, tile, shared_floats, vector);
  });
}

template <int width>  // head_dim rounded up to 64, 128 or 256
struct Layout {
  static constexpr int kStride = width + 4;  // rows start 4 banks apart
  static constexpr int kQueries = 0, kKeys = kRows * kStride, kKeysEnd = kKeys + kKeyTile * kStride;
  static constexpr int kScoreFloats = kRows * kScoreStride, kBoth = kKeysEnd + kKeyTile * width + kScoreFloats;
  // If there is no room for both, values replace keys.
  static constexpr bool kInTurn = kBoth * static_cast<int>(sizeof(float)) > kMaxSharedBytes - kStaticBytes;
  static constexpr int kValues = kInTurn ? kKeys : kKeysEnd, kScores = kInTurn ? kKeysEnd : kBoth - kScoreFloats;
  static constexpr int kFloats = kScores + kScoreFloats;
};

// Loads `rows` rows of head_dim into shared memory, with zeros beyond head_dim and where row_at returns none.
template <int width, class RowAt>
__device__ void load_rows(float* target, int stride, int rows, int head_dim, bool vector, RowAt&& row_at) {
  for (int item = threadIdx.x; item < rows * (width / 4); item += kThreads) {
    const int row = item / (width / 4), column = item % (width / 4) * 4;
    const auto source = row_at(row);
    float4 four = {0, 0, 0, 0};
    if (source.elements != nullptr) four = load_four(source, column, head_dim, vector);
    *reinterpret_cast<float4*>(target + row * stride + column) = four;
  }
}

// The online softmax of four query rows, from row0 on, which 16 threads share. A thread has every 16th key of a tile,
// and runs of four of the output's columns, 64 apart. A weight is e^(score - largest); the output is divided by the
// weights' sum at the very end.
template <int width, bool windowed>
struct Rows {
  using L = Layout<width>;
  static constexpr int kColumns = width / 16;

  const AttentionArgs& args;
  const QueryTile& tile;
  float* shared;
  const int tx = threadIdx.x % 16, row0 = threadIdx.x / 16 * kEach;
  float* const weights = shared + L::kScores + row0 * kScoreStride;  // [kEach, keys]: only these 16 threads use them
  ScaledScores rule{};
  // The split so far. `total` covers this thread's keys only, until the split is closed.
  float out[kEach][kColumns] = {}, largest[kEach], total[kEach] = {};
  // The merged result of all earlier splits.
  float earlier_out[kEach][kColumns] = {}, earlier_largest[kEach] = {}, earlier_total[kEach] = {};

  __device__ __forceinline__ Rows(const AttentionArgs& arguments, const QueryTile& query_tile, float* shared_floats)
      : args(arguments), tile(query_tile), shared(shared_floats) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) largest[r] = no_score<windowed>(args);
  }

  // Merges the split that begins at `first_key` into the earlier ones, unless it is the `first` one. Rows before
  // `first_key` keep what they have, and rows whose windows begin after it have nothing earlier.
  __device__ __forceinline__ void close_split(int first_key, bool first) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int step = 1; step < 16; step *= 2) total[i] += __shfl_xor_sync(0xffffffffu, total[i], step);
      if (first || (windowed && tile.row_position(row0 + i) - args.window >= first_key - 1)) continue;
      const bool has_keys = tile.row_position(row0 + i) >= first_key;
      const float most = fmaxf(earlier_largest[i], largest[i]);
      const float scales[2] = {rule.weight(earlier_largest[i], most), rule.weight(largest[i], most)};
      largest[i] = has_keys ? most : earlier_largest[i];
      total[i] = has_keys ? merged(earlier_total[i], scales[0], total[i], scales[1]) : earlier_total[i];
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        out[i][c] = has_keys ? merged(earlier_out[i][c], scales[0], out[i][c], scales[1]) : earlier_out[i][c];
    }
  }

  // Keeps the merged result of all splits so far, and begins a new split.
  __device__ __forceinline__ void set_aside() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      earlier_largest[i] = largest[i];
      earlier_total[i] = total[i];
      largest[i] = no_score<windowed>(args);
      total[i] = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        earlier_out[i][c] = out[i][c];
        out[i][c] = 0;
      }
    }
  }

  // p = queries times keys, for this thread's rows and keys.
  __device__ __forceinline__ void multiply_keys(float (&p)[kEach][kEach]) const {
#pragma unroll 4
    for (int d = 0; d < width; d += 4) {
      float4 query[kEach], key[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        query[i] = *reinterpret_cast<const float4*>(shared + L::kQueries + (row0 + i) * L::kStride + d);
        key[i] = *reinterpret_cast<const float4*>(shared + L::kKeys + (tx + 16 * i) * L::kStride + d);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) p[i][j] = dot(p[i][j], query[i], key[j]);
    }
  }

  // Turns products into scores, and scores into weights for all 16 threads of these rows. `shrink` is the factor by
  // which the new largest score reduces the earlier results.
  __device__ __forceinline__ void weigh(int first_key, float (&p)[kEach][kEach], float (&shrink)[kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int position = tile.row_position(row0 + i);
      float most = -INFINITY, sum = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int key = first_key + tx + 16 * j;
        p[i][j] =
            key <= position && (!windowed || key > position - args.window) ? __fmul_rn(p[i][j], args.scale) : -INFINITY;
        most = fmaxf(most, p[i][j]);
      }
#pragma unroll
      for (int step = 1; step < 16; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
      const float next = fmaxf(largest[i], most);
      shrink[i] = rule.weight(largest[i], next);
      largest[i] = next;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        p[i][j] = rule.weight(p[i][j], next);
        sum += p[i][j];
        weights[i * kScoreStride + tx + 16 * j] = p[i][j];
      }
      total[i] = fmaf(total[i], shrink[i], sum);
    }
  }

  // out = out shrink + weights times values; the tile's products are summed separately first.
  __device__ __forceinline__ void multiply_values(const float (&shrink)[kEach]) {
    float part[kEach][kColumns] = {};
#pragma unroll 2
    for (int key = 0; key < kKeyTile; key += 4) {
      float4 weight[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) weight[i] = *reinterpret_cast<const float4*>(weights + i * kScoreStride + key);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int c = 0; c < kColumns; c += 4) {
          const float4 value =
              *reinterpret_cast<const float4*>(shared + L::kValues + (key + e) * width + c / 4 * 64 + tx * 4);
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            const float w = e == 0 ? weight[i].x : e == 1 ? weight[i].y : e == 2 ? weight[i].z : weight[i].w;
            part[i][c] = fmaf(w, value.x, part[i][c]);
            part[i][c + 1] = fmaf(w, value.y, part[i][c + 1]);
            part[i][c + 2] = fmaf(w, value.z, part[i][c + 2]);
            part[i][c + 3] = fmaf(w, value.w, part[i][c + 3]);
          }
        }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[i][c] = fmaf(out[i][c], shrink[i], part[i][c]);
  }

  __device__ __forceinline__ void store() const {
    for (int i = 0; i < kEach; ++i) {
      if (!tile.row_valid(row0 + i)) continue;
      const int64_t token = tile.first_token + (row0 + i) / tile.group;
      const int64_t head = tile.kv_head * tile.group + (row0 + i) % tile.group;
      float* target = static_cast<float*>(args.out) + (token * args.heads + head) * args.head_dim;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = c / 4 * 64 + tx * 4 + c % 4;
        if (column < args.head_dim) target[column] = out[i][c] / total[i];
      }
    }
  }
};

// Computes the output of one tile of queries, one tile of keys after another.
template <class E, int width, bool paged, bool windowed>
__device__ void attend(const AttentionArgs& args, const QueryTile& tile, float* shared, bool vector) {
  using L = Layout<width>;
  const float* qkv = static_cast<const float*>(args.qkv);
  const QkvColumns columns(args);
  const KeyRows<E, paged, windowed> keys(args, tile);
  Rows<width, windowed> rows(args, tile, shared);
  load_rows<width>(shared + L::kQueries, L::kStride, kRows, args.head_dim, vector, [&](int row) -> HeadRow<float> {
    if (!tile.row_valid(row)) return {};
    const int64_t head = tile.kv_head * tile.group + row % tile.group;
    return {qkv + (tile.first_token + row / tile.group) * columns.stride + head * args.head_dim, 1};
  });
  for (int first_key = keys.first / kKeyTile * kKeyTile; first_key < tile.keys(); first_key += kKeyTile) {
    if (first_key > keys.first && first_key % kSplitKeys == 0) {
      rows.close_split(first_key - kSplitKeys, first_key - kSplitKeys <= keys.first);
      rows.set_aside();
    }
    const auto row_of = [&](const CachedHead<E>& head, int row) -> HeadRow<E> {
      return first_key + row < tile.keys() ? head.row(keys.row(first_key + row)) : HeadRow<E>{};
    };
    load_rows<width>(shared + L::kKeys, L::kStride, kKeyTile, args.head_dim, vector,
                     [&](int row) { return row_of(keys.keys, row); });
    const auto load_values = [&] {
      load_rows<width>(shared + L::kValues, width, kKeyTile, args.head_dim, vector,
                       [&](int row) { return row_of(keys.values, row); });
    };
    if constexpr (!L::kInTurn) load_values();
    __syncthreads();
    float p[kEach][kEach] = {}, shrink[kEach];  // p [rows, keys]
    rows.multiply_keys(p);
    if constexpr (L::kInTurn) {
      __syncthreads();  // the keys are no longer needed
      load_values();
      __syncthreads();
    }
    rows.weigh(first_key, p, shrink);
    __syncwarp();
    rows.multiply_values(shrink);
    __syncthreads();  // before the next keys are loaded
  }
  const int last_split = (tile.keys() - 1) / kSplitKeys * kSplitKeys;
  rows.close_split(last_split, last_split <= keys.first);
  rows.store();
}

template <class E, int width, bool paged, bool windowed>
void launch_kernel(cudaStream_t stream, const AttentionArgs& args) {
  constexpr auto kernel = attention_simt_kernel<E, width, paged, windowed>;
  constexpr int kSharedBytes = Layout<width>::kFloats * static_cast<int>(sizeof(float));
  allow_shared_bytes<kernel, kSharedBytes>();
  const int tile_positions = kRows / (args.heads / args.kv_heads);
  const bool vector = args.head_dim % 4 == 0 && args.columns % 4 == 0 && on_16_bytes(args.qkv) &&
                      on_16_bytes(args.pages.keys) && on_16_bytes(args.pages.values);
  kernel<<<attention_grid(args, tile_positions), kThreads, kSharedBytes, stream>>>(args, tile_positions, vector);
  check_launch("attention_simt_kernel");
}

}  // namespace

void launch_attention_simt(cudaStream_t stream, const AttentionArgs& args) {
  if (args.tokens == args.pages.singles) return;
  with_width(args.head_dim, [&](auto width) {
    with_constant(args.window != kNoWindow, [&](auto windowed) {
      if (args.pages.key_scales != nullptr) return launch_kernel<F8, width(), true, windowed()>(stream, args);
      with_constant(args.pages.keys != nullptr,
                    [&](auto paged) { launch_kernel<float, width(), paged(), windowed()>(stream, args); });
    });
  });
}

}  // namespace lfm2
