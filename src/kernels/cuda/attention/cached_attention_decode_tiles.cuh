// How a warp of cached_attention_decode_mma.cu loads tiles of keys and of values into its shared memory.
#pragma once

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/cached_attention_decode.cuh"

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

// How a warp shares a tile of fp8: lane l has piece l % kPieces, 16 elements, of every kStep-th row. Loaded pieces lie
// as the lanes have them, so each lane converts what it has loaded.
template <int width>
struct Fp8Tile {
  static constexpr int kPieces = width / 16, kStep = 32 / kPieces, kEach = kKeyTile / kStep;

  // The row of the lane's i-th piece, and the value in `of_rows` of the lane that knows this row of the tile.
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) % 32 / kPieces + i * kStep; }
  __device__ static int get(const int (&of_rows)[2], int i) {
    return __shfl_sync(kAllLanes, i < kEach / 2 ? of_rows[0] : of_rows[1], row(i) % 32);
  }
  __device__ static int piece() { return static_cast<int>(threadIdx.x) % kPieces; }
  __device__ static char* place(char* bytes, int i) {
    return bytes + (i * 32 + static_cast<int>(threadIdx.x) % 32) * 16;
  }

  // `rows` and `count` as for load_tile.
  template <bool vector>
  __device__ static void load(char* bytes, const CachedHead<F8>& head, const int (&rows)[2], int count, int head_dim) {
#pragma unroll(vector ? kEach : 1)
    for (int i = 0; i < kEach; ++i) {
      const F8* const source = head.elements + get(rows, i) * head.stride;
      const bool valid = row(i) < count && piece() * 16 < head_dim;
      if constexpr (vector)
        copy_async(shared_address(place(bytes, i)), source + piece() * 16, valid);
      else
        *reinterpret_cast<uint4*>(place(bytes, i)) =
            valid ? load_bytes<uint4, false>(source, piece(), head_dim) : uint4{0, 0, 0, 0};
    }
  }
  // Writes the elements as a tile of type T. `exponents` are those of the scales of the rows lane and lane + 32.
  template <class T>
  __device__ static void convert(char* bytes, const int (&exponents)[2], char* tile) {
#pragma unroll 4
    for (int i = 0; i < kEach; ++i) {
      const float scale = scale_of(get(exponents, i));
      const uint4 elements = *reinterpret_cast<const uint4*>(place(bytes, i));
      *reinterpret_cast<uint4*>(tile + chunk_offset(row(i), 2 * piece(), width / 8)) =
          from_fp8<T>(uint2{elements.x, elements.y}, scale);
      *reinterpret_cast<uint4*>(tile + chunk_offset(row(i), 2 * piece() + 1, width / 8)) =
          from_fp8<T>(uint2{elements.z, elements.w}, scale);
    }
  }
};

// The tiles that one warp of a block processes: in every split of the block each warps-th tile, where the number of
// warps divides kSplitTiles. The warp has its own buffers for keys and values: two tiles of type T, or, for fp8, a tile
// of type T into which both are converted, and two tiles of bytes.
template <class T, class E, int width, bool vector>
class TileStream {
  static constexpr bool kFp8 = std::is_same_v<E, F8>;
  static constexpr int kTileBytes = KeyStep<T, width>::kKeyBytes;

  const AttentionArgs& a;
  const DecodeRows& block;
  const CachedHead<E> all_keys, all_values;  // those of the key-value head, in the whole cache
  const int warps;
  char* const converted;                               // for fp8: the tile that is multiplied
  char *const keys, *const values;                     // the buffers that tiles are loaded into
  int key_exponents[2] = {}, value_exponents[2] = {};  // for fp8: those of the loaded rows lane and lane + 32

 public:
  const int end_tile;

  __device__ __forceinline__ TileStream(const AttentionArgs& args, const DecodeRows& rows, int kv_head, char* buffers)
      : a(args),
        block(rows),
        all_keys(a, a.pages.keys, a.pages.key_scales, kv_head),
        all_values(a, a.pages.values, a.pages.value_scales, kv_head),
        warps(blockDim.x / 32),
        converted(buffers),
        keys(buffers + (kFp8 ? kTileBytes : 0)),
        values(buffers + (kFp8 ? kTileBytes + kTileBytes / 2 : kTileBytes)),
        end_tile((block.keys + kKeyTile - 1) / kKeyTile) {}

  // The rows of the cache that hold a tile's positions lane and lane + 32.
  __device__ __forceinline__ void find_rows(int tile, int (&found)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = tile * kKeyTile + static_cast<int>(threadIdx.x % 32) + 32 * i;
      found[i] = position < block.keys ? cache_row(a.pages, block.token, position) : 0;
    }
  }
  __device__ __forceinline__ void load_keys(int tile, const int (&from)[2]) {
    load(keys, all_keys, tile, from, key_exponents);
  }
  __device__ __forceinline__ void load_values(int tile, const int (&from)[2]) {
    load(values, all_values, tile, from, value_exponents);
  }
  // The tile that has arrived, in shared memory. The warp must be done with the previous tile.
  __device__ __forceinline__ uint32_t keys_to_multiply() const { return to_multiply(keys, key_exponents); }
  __device__ __forceinline__ uint32_t values_to_multiply() const { return to_multiply(values, value_exponents); }
  __device__ __forceinline__ int tile_after(int tile) const {
    const int next = tile + warps;
    return next / kSplitTiles == tile / kSplitTiles ? next : next + (block.step() - 1) * kSplitTiles;
  }

 private:
  __device__ __forceinline__ void load(char* buffer, const CachedHead<E>& head, int tile, const int (&from)[2],
                                       int (&exponents)[2]) const {
    const int count = block.keys - tile * kKeyTile;
    if constexpr (kFp8) {
      Fp8Tile<width>::template load<vector>(buffer, head, from, count, a.head_dim);
#pragma unroll
      for (int i = 0; i < 2; ++i)  // rows beyond the last are zeros
        exponents[i] = static_cast<int>(threadIdx.x) % 32 + 32 * i < count ? head.exponent(from[i]) : kScaleBias;
    } else {
      load_tile<T, width, vector>(buffer, head.elements, static_cast<int>(head.stride), from, count, a.head_dim);
    }
  }
  __device__ __forceinline__ uint32_t to_multiply(char* buffer, const int (&exponents)[2]) const {
    if constexpr (kFp8) {
      Fp8Tile<width>::template convert<T>(buffer, exponents, converted);
      __syncwarp();
      buffer = converted;
    }
    return shared_address(buffer);
  }
};

}  // namespace lfm2
