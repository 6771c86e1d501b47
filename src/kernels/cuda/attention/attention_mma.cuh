// Multiplies one warp's 16 query rows with a tile of 64 keys, for bf16 and fp16 on tensor cores. The kernels over tiles
// of queries and over single tokens share these functions, so that they give the same bits.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace lfm2 {

constexpr int kScoreParts = kKeyTile / 8;
constexpr int kSlice = 32;   // output columns that are summed at a time
constexpr float kLift = 10;  // probabilities are kept times 2^kLift, so that small ones stay above fp16's subnormals

// Loads the bytes of a chunk of fp8 elements of a row of head_dim, with zeros beyond that. `vector`: head_dim is a
// multiple of the chunk, and rows begin on it.
template <class Bytes, bool vector>
__device__ Bytes load_bytes(const F8* row, int chunk, int head_dim) {
  constexpr int kBytes = sizeof(Bytes);
  if constexpr (vector) return reinterpret_cast<const Bytes*>(row)[chunk];
  Bytes bytes = {};
  for (int e = 0; e < kBytes; ++e)
    if (chunk * kBytes + e < head_dim) reinterpret_cast<F8*>(&bytes)[e] = row[chunk * kBytes + e];
  return bytes;
}

// Eight elements of a row of head_dim, with zeros beyond head_dim. `vector`: head_dim is a multiple of eight, and rows
// begin on 16 bytes.
template <bool vector, class T>
__device__ uint4 chunk_of(const T* row, int chunk, int head_dim) {
  uint4 bits = {0, 0, 0, 0};
  if constexpr (vector) {
    if (chunk * 8 < head_dim) bits = reinterpret_cast<const uint4*>(row)[chunk];
  } else {
    for (int e = 0; e < 8; ++e)
      if (chunk * 8 + e < head_dim) reinterpret_cast<T*>(&bits)[e] = row[chunk * 8 + e];
  }
  return bits;
}
// Loads them into shared memory, zeros for a row that is not `valid`.
template <bool vector, class T>
__device__ void load_chunk(char* target, const T* row, int chunk, int head_dim, bool valid) {
  if constexpr (vector)
    return copy_async(shared_address(target), row + chunk * 8, valid && chunk * 8 < head_dim);
  else
    *reinterpret_cast<uint4*>(target) = valid ? chunk_of<false>(row, chunk, head_dim) : uint4{0, 0, 0, 0};
}

// The same for a row of keys or values, as elements of type T.
template <class T, bool vector>
__device__ void load_chunk(char* target, const CachedHead<T>& head, int64_t row, int chunk, int head_dim, bool valid) {
  load_chunk<vector>(target, head.elements + row * head.stride, chunk, head_dim, valid);
}
template <class T, bool vector>
__device__ void load_chunk(char* target, const CachedHead<F8>& head, int64_t row, int chunk, int head_dim, bool valid) {
  uint4 elements = {0, 0, 0, 0};
  if (valid && chunk * 8 < head_dim) {
    const HeadRow<F8> source = head.row(row);
    elements = from_fp8<T>(load_bytes<uint2, vector>(source.elements, chunk, head_dim), source.scale);
  }
  *reinterpret_cast<uint4*>(target) = elements;
}

// Lane l has the rows l / 4 and l / 4 + 8 of the 16. If `halves` is 1, only the first eight rows count.
template <class T, int width>  // width: head_dim rounded up to 64, 128 or 256
struct KeyStep {
  static constexpr int kChunks = width / 8, kKeyBytes = kKeyTile * width * 2;

  // scores = queries times keys. The lane loads chunks of the queries' row `query_row`.
  static __device__ void multiply_keys(uint32_t queries, int query_row, uint32_t keys,
                                       float (&scores)[kScoreParts][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = 0;
#pragma unroll
    for (int d = 0; d < width / 16; ++d) {
      uint32_t query[4];
      load_matrices(query, queries + chunk_offset(query_row, 2 * d + (lane >> 4), kChunks));
#pragma unroll
      for (int j = 0; j < kKeyTile / 16; ++j) {
        uint32_t key[4];
        load_matrices(key,
                      keys + chunk_offset(j * 16 + (lane & 7) + (lane >> 4) * 8, 2 * d + ((lane >> 3) & 1), kChunks));
        multiply_add<T>(scores[2 * j], query, key[0], key[1]);
        multiply_add<T>(scores[2 * j + 1], query, key[2], key[3]);
      }
    }
  }

  // Sets the scores of keys after a row's position to -infinity. `positions` are those of the lane's two rows.
  static __device__ void mask(int first_key, const int (&positions)[2], float (&scores)[kScoreParts][4]) {
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first_key + j * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2 > positions[i / 2])
          scores[j][i] = -INFINITY;
  }

  // The same for keys before the first one that a row reads.
  static __device__ void mask_before(int first_key, const int (&first_keys)[2], float (&scores)[kScoreParts][4]) {
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first_key + j * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2 < first_keys[i / 2])
          scores[j][i] = -INFINITY;
  }

  static __device__ float largest(const float (&scores)[kScoreParts][4], int r) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j) most = fmaxf(most, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    return fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
  }

  // Turns the scores into probabilities relative to the largest scores `most`, times 2^kLift. `sums` are the sums of
  // this lane's probabilities.
  template <int halves>
  static __device__ void weigh(float (&scores)[kScoreParts][4], const float (&most)[2], float log2_scale,
                               float (&sums)[2]) {
    float offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = fmaf(most[r], log2_scale, -kLift);
      sums[r] = 0;
    }
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j)
#pragma unroll
      for (int i = 0; i < 2 * halves; ++i) {
        scores[j][i] = power_of_two(fmaf(scores[j][i], log2_scale, -offset[i / 2]));
        sums[i / 2] += scores[j][i];
      }
  }

  // Splits each probability into the sum of two terms of type T, `high` and `low`.
  template <int halves>
  static __device__ void terms(const float (&scores)[kScoreParts][4], uint32_t (&high)[kKeyTile / 16][4],
                               uint32_t (&low)[kKeyTile / 16][4]) {
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = scores[j][2 * r], y = scores[j][2 * r + 1];
        const uint32_t pair = r < halves ? pack<T>(x, y) : 0;
        const float2 kept = unpack<T>(pair);
        high[j / 2][j % 2 * 2 + r] = pair;
        low[j / 2][j % 2 * 2 + r] = r < halves ? pack<T>(x - kept.x, y - kept.y) : 0;
      }
  }

  // sums = probabilities (high + low) times values, columns [slice, slice + kSlice).
  static __device__ void multiply_values(uint32_t values, int slice, const uint32_t (&high)[kKeyTile / 16][4],
                                         const uint32_t (&low)[kKeyTile / 16][4], float (&sums)[kSlice / 8][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kSlice / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0;
#pragma unroll
    for (int key = 0; key < kKeyTile / 16; ++key)
#pragma unroll
      for (int j = 0; j < kSlice / 16; ++j) {
        uint32_t value[4];
        load_matrices_transposed(
            value, values + chunk_offset(key * 16 + (lane & 15), slice / 8 + 2 * j + (lane >> 4), kChunks));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_add<T>(sums[2 * j + half], low[key], value[2 * half], value[2 * half + 1]);
          multiply_add<T>(sums[2 * j + half], high[key], value[2 * half], value[2 * half + 1]);
        }
      }
  }
};

}  // namespace lfm2
