// How a warp of cached_attention_decode_mma.cu loads tiles of keys and of values into its shared memory and multiplies
// them.
#pragma once

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/cached_attention_decode.cuh"
#include "kernels/cuda/attention/fp8_tile.cuh"

namespace lfm2 {

// Loads a warp's tile of keys or values, of which the first `count` exist. Lane l knows the cache's rows of the tile's
// keys l and l + 32.
template <class T, int width, bool vector>
__device__ void load_tile(char* target, const T* head, int stride, const int (&rows)[2], int count, int head_dim) {
  // A warp loads kStep rows at a time, kEach times.
  constexpr int kChunks = width / 8, kStep = 32 / kChunks, kEach = kKeyTile / kStep;
  const int lane = threadIdx.x % 32, chunk = lane % kChunks, row0 = lane / kChunks;
  if constexpr (vector) {
    // This is chunk_offset of the rows row0 + i kStep: row0 is below kStep, so the two parts of a row's number share no
    // bits.
    const uint32_t base = shared_address(target) + row0 * kChunks * 16, place = (chunk ^ row0) * 16;
    const char* const source = reinterpret_cast<const char*>(head + chunk * 8);
    const int row_bytes = stride * static_cast<int>(sizeof(T));
    if (chunk * 8 >= head_dim) count = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = __shfl_sync(0xffffffffu, rows[i / (kEach / 2)], row0 + i * kStep % 32);
      copy_async(base + (place ^ (i * kStep % 8 * 16)) + i * kStep * kChunks * 16,
                 source + static_cast<int64_t>(at) * row_bytes, row0 + i * kStep < count);
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < kEach; ++i) {
      const int row = row0 + i * kStep;
      const int at = __shfl_sync(0xffffffffu, i < kEach / 2 ? rows[0] : rows[1], row % 32);
      load_chunk<false>(target + chunk_offset(row, chunk, kChunks), head + static_cast<int64_t>(at) * stride, chunk,
                        head_dim, row < count);
    }
  }
}

// Stores columns of a row of a warp's part. A lane has the rows row0 and row0 + 8, of which the first `rows` exist.
template <int width>
struct PartStore {
  const DecodeState& s;
  const int &rows, &warp, &row0;
  template <class Sums>
  __device__ __forceinline__ void operator()(int half, int column, Sums sums) const {
    const int row = row0 + 8 * half;
    if (row < rows) *reinterpret_cast<Sums*>(s.parts + (warp * rows + row) * width + column) = sums;
  }
};

// The tiles that one warp of a block processes: in every split of the block each warps-th tile, from the first one that
// the rows read on. The warp has its own buffers, for a tile of keys and a tile of values of type E.
template <class T, class E, int width, bool vector>
class TileStream {
  static constexpr bool kFp8 = std::is_same_v<E, F8>;
  static constexpr int kTileBytes = kKeyTile * width * static_cast<int>(sizeof(E));
  using Step = KeyStep<T, width>;
  using Fp8 = Fp8Tile<T, width>;

  const AttentionArgs& a;
  const DecodeRows& block;
  const CachedHead<E> all_keys, all_values;  // those of the key-value head, in the whole cache
  const int warps;
  char *const keys, *const values;
  int key_exponents[2] = {}, value_exponents[2] = {};  // for fp8: those of the loaded rows lane and lane + 32

 public:
  static constexpr int kBufferBytes = 2 * kTileBytes;
  const int end_tile;

  __device__ __forceinline__ TileStream(const AttentionArgs& args, const DecodeRows& rows, int kv_head, char* buffers)
      : a(args),
        block(rows),
        all_keys(a, a.pages.keys, a.pages.key_scales, kv_head),
        all_values(a, a.pages.values, a.pages.value_scales, kv_head),
        warps(blockDim.x / 32),
        keys(buffers),
        values(buffers + kTileBytes),
        end_tile((block.keys + kKeyTile - 1) / kKeyTile) {}

  // The rows of the cache that hold a tile's positions lane and lane + 32. Positions before the window, whose pages the
  // sequence may no longer have, are replaced by its first one: their weights are 0.
  __device__ __forceinline__ void find_rows(int tile, int (&found)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = tile * kKeyTile + static_cast<int>(threadIdx.x % 32) + 32 * i;
      found[i] = position < block.keys ? cache_row(a.pages, block.token, max(position, block.first_key())) : 0;
    }
  }
  __device__ __forceinline__ void load_keys(int tile, const int (&from)[2]) {
    load(keys, all_keys, tile, from, key_exponents);
  }
  __device__ __forceinline__ void load_values(int tile, const int (&from)[2]) {
    load(values, all_values, tile, from, value_exponents);
  }
  // Loads the block's query rows, 16 or 32 bytes per thread at a time.
  __device__ __forceinline__ void load_queries(char* queries) const {
    const QkvColumns columns(a);
    const T* const first = static_cast<const T*>(a.qkv) + block.token * columns.stride +
                           static_cast<int64_t>(block.first_head) * a.head_dim;
    if constexpr (kFp8) return Fp8::template load_queries<vector>(queries, first, block.rows, a.head_dim);
    constexpr int kChunks = width / 8;
    for (int item = threadIdx.x; item < block.rows * kChunks; item += blockDim.x) {
      const int row = item / kChunks, chunk = item % kChunks;
      load_chunk<vector>(queries + chunk_offset(row, chunk, kChunks), first + row * a.head_dim, chunk, a.head_dim,
                         true);
    }
  }
  // scores = queries times the keys that have arrived.
  __device__ __forceinline__ void multiply_keys(uint32_t queries, int query_row,
                                                float (&scores)[kScoreParts][4]) const {
    if constexpr (kFp8)
      Fp8::multiply_keys(queries, query_row, shared_address(keys), key_exponents, scores);
    else
      Step::multiply_keys(queries, query_row, shared_address(keys), scores);
  }
  // Multiplies weights, `scores` as KeyStep::weigh leaves them, with the values that have arrived, kSlice columns at a
  // time. store(half, column, sums) stores neighbouring columns of one of the lane's rows: two, or, for fp8, four.
  template <int halves, class Store>
  __device__ __forceinline__ void multiply_values(const float (&scores)[kScoreParts][4], Store store) const {
    if constexpr (kFp8)
      if (!Fp8::lifts(value_exponents)) return multiply_converted_values<halves>(scores, store);
    uint32_t high[kKeyTile / 16][4], low[kKeyTile / 16][4];
    Step::template terms<halves>(scores, high, low);
    if constexpr (kFp8) Fp8::lift(value_exponents, high, low);
    bool has_nan = false;
#pragma unroll
    for (int slice = 0; slice < width; slice += kSlice) {
      float sums[kSlice / 8][4];
      if constexpr (kFp8) {
        has_nan |= Fp8::template multiply_values<true>(shared_address(values), slice, value_exponents, high, low, sums);
        store_fp8<halves>(slice, sums, store);
      } else {
        Step::multiply_values(shared_address(values), slice, high, low, sums);
#pragma unroll
        for (int j = 0; j < kSlice / 8; ++j)
#pragma unroll
          for (int r = 0; r < halves; ++r)
            store(r, slice + j * 8 + lane_columns(2), float2{sums[j][2 * r], sums[j][2 * r + 1]});
      }
    }
    if constexpr (kFp8)
      if (has_nan) multiply_converted_values<halves>(scores, store);
  }
  // `tile` if it is in the split, otherwise the warp's first tile in the block's next split.
  __device__ __forceinline__ int tile_from(int split, int tile) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    return tile / kSplitTiles == split ? tile : (split + block.step()) * kSplitTiles + warp;
  }
  __device__ __forceinline__ int tile_after(int tile) const { return tile_from(tile / kSplitTiles, tile + warps); }

 private:
  __device__ __forceinline__ static int lane_columns(int each) { return static_cast<int>(threadIdx.x) % 4 * each; }

  __device__ __forceinline__ void load(char* buffer, const CachedHead<E>& head, int tile, const int (&from)[2],
                                       int (&exponents)[2]) const {
    const int count = block.keys - tile * kKeyTile;
    if constexpr (kFp8) {
      Fp8::template load<vector>(buffer, head, from, count, a.head_dim);
#pragma unroll
      for (int i = 0; i < 2; ++i)  // rows beyond the last are zeros
        exponents[i] = static_cast<int>(threadIdx.x) % 32 + 32 * i < count ? head.exponent(from[i]) : kMinScaleExponent;
    } else {
      load_tile<T, width, vector>(buffer, head.elements, static_cast<int>(head.stride), from, count, a.head_dim);
    }
  }

  template <int halves, class Store>
  __device__ __forceinline__ static void store_fp8(int slice, const float (&sums)[kSlice / 8][4], Store store) {
#pragma unroll
    for (int j = 0; j < kSlice / 8; j += 2)
#pragma unroll
      for (int r = 0; r < halves; ++r)
        store(r, slice + j * 8 + lane_columns(4),
              float4{sums[j][2 * r], sums[j + 1][2 * r], sums[j][2 * r + 1], sums[j + 1][2 * r + 1]});
  }
  template <int halves, class Store>
  __device__ __forceinline__ void multiply_converted_values(const float (&scores)[kScoreParts][4], Store store) const {
    uint32_t high[kKeyTile / 16][4], low[kKeyTile / 16][4];
    Step::template terms<halves>(scores, high, low);
#pragma unroll 1
    for (int slice = 0; slice < width; slice += kSlice) {
      float sums[kSlice / 8][4];
      Fp8::multiply_converted_values(shared_address(values), slice, value_exponents[0], value_exponents[1], high, low,
                                     sums);
      store_fp8<halves>(slice, sums, store);
    }
  }
};

}  // namespace lfm2
