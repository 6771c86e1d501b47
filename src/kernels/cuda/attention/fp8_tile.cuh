// A warp's tile of 64 keys or values in fp8, which it multiplies without writing them as another type: each lane widens
// the bytes that ldmatrix gives it.
//
// For bf16 that takes few instructions. The bits of E4M3, moved to the bits of bf16 that mean the same, are the element
// times 2^-120, because the biases of the exponents are 7 and 127; this holds for subnormal elements, too. The scales
// and 2^120 are powers of two. So the scale of a key multiplies its scores, and the scale of a value its weights, where
// no product is rounded, and the results have the bits of products with s · E4M3. NaN would become 480, and large
// scales would leave the range of the type: then the tile is multiplied with elements that are converted one by one.
#pragma once

#include "kernels/cuda/attention/attention_mma.cuh"

namespace lfm2 {

// Elements 0 and 2 of four bytes, and elements 1 and 3, as operands of type T.
struct Fp8Pairs {
  uint32_t even, odd;
};

// Those of bf16 times 2^-120. `largest` keeps the largest magnitudes, bits kFp8NotANumber where one is NaN.
constexpr uint32_t kFp8NotANumber = 0x07f0;
__device__ inline Fp8Pairs moved_fp8(uint32_t four, uint32_t& largest) {
  constexpr uint32_t kMagnitudes = kFp8NotANumber << 16 | kFp8NotANumber, kSigns = 0x80008000;
  const uint32_t even = four << 4 & kMagnitudes, odd = four >> 4 & kMagnitudes;
  largest = __vimax3_u16x2(largest, even, odd);
  return {even | (four << 8 & kSigns), odd | (four & kSigns)};
}
// Those of any type, multiplied by the scale of elements 0 and 1 and that of 2 and 3.
template <class T>
__device__ Fp8Pairs converted_fp8(uint32_t four, float scale01, float scale23) {
  const float4 x = from_fp8(four, 1);
  return {pack<T>(x.x * scale01, x.z * scale23), pack<T>(x.y * scale01, x.w * scale23)};
}

// Of a pair of bf16, each times the one of another.
__device__ inline uint32_t times_pair(uint32_t x, uint32_t y) {
  const __nv_bfloat162 product =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x), *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const uint32_t*>(&product);
}

// width: head_dim rounded up to 64, 128 or 256. Lane l knows the exponents of the scales of the tile's rows l and
// l + 32 (kernels/fp8_cache.h).
template <class T, int width>
struct Fp8Tile {
  static constexpr int kPieces = width / 16, kStep = 32 / kPieces, kEach = kKeyTile / kStep;
  static constexpr bool kMoves = std::is_same_v<T, __nv_bfloat16>;
  // Exponents of the powers of two by which queries, scores and weights are multiplied. Weights are at most 2^kLift.
  static constexpr int kQueryLift = 60, kScoreLift = 120 - kQueryLift, kWeightLift = 120;
  static constexpr int kMaxKeyExponent = 254 - kScoreLift,
                       kMaxValueExponent = 254 - kWeightLift - static_cast<int>(kLift);

  // Byte offset of 16 elements of a row. Those of eight rows, in one column, lie in different banks.
  __device__ static int place(int row, int piece) {
    return (row * kPieces + (piece ^ (kPieces == 4 ? row / 2 % 4 : row % 8))) * 16;
  }

  // Loads a tile of which the first `count` rows exist. Lane l knows the cache's rows of the tile's l and l + 32.
  template <bool vector>
  __device__ static void load(char* tile, const CachedHead<F8>& head, const int (&rows)[2], int count, int head_dim) {
    const int lane = threadIdx.x % 32, piece = lane % kPieces;
#pragma unroll(vector ? kEach : 1)
    for (int i = 0; i < kEach; ++i) {
      const int row = lane / kPieces + i * kStep;
      const int at = __shfl_sync(kAllLanes, i < kEach / 2 ? rows[0] : rows[1], row % 32);
      const F8* const source = head.elements + at * head.stride;
      const bool valid = row < count && piece * 16 < head_dim;
      if constexpr (vector)
        copy_async(shared_address(tile + place(row, piece)), source + piece * 16, valid);
      else
        *reinterpret_cast<uint4*>(tile + place(row, piece)) =
            valid ? load_bytes<uint4, false>(source, piece, head_dim) : uint4{0, 0, 0, 0};
    }
  }

  // Loads the block's query rows into shared memory, in the order in which multiply_keys() has the elements.
  template <bool vector>
  __device__ static void load_queries(char* queries, const T* first, int rows, int head_dim) {
    for (int item = threadIdx.x; item < rows * kPieces; item += blockDim.x) {
      const int row = item / kPieces, piece = item % kPieces;
      uint4 chunks[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        chunks[half] = chunk_of<vector>(first + row * head_dim, 2 * piece + half, head_dim);
#if __CUDA_ARCH__ >= 900
      const auto pick = [&](uint32_t bytes) {
        return uint4{__byte_perm(chunks[0].x, chunks[0].y, bytes), __byte_perm(chunks[0].z, chunks[0].w, bytes),
                     __byte_perm(chunks[1].x, chunks[1].y, bytes), __byte_perm(chunks[1].z, chunks[1].w, bytes)};
      };
      const uint4 even = pick(0x5410), odd = pick(0x7632);
      chunks[0] = even;
      chunks[1] = odd;
#endif
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<uint4*>(queries + chunk_offset(row, 2 * piece + half, width / 8)) = chunks[half];
    }
  }

  // scores = queries times keys, as KeyStep::multiply_keys.
  __device__ static void multiply_keys(uint32_t queries, int query_row, uint32_t keys, const int (&exponents)[2],
                                       float (&scores)[kScoreParts][4]) {
    if constexpr (kMoves)
      if (__all_sync(kAllLanes, max(exponents[0], exponents[1]) <= kMaxKeyExponent)) {
        uint32_t largest = 0;
        products_of_keys<true>(queries, query_row, keys, exponents, scores, largest);
        if (scale(exponents, scores) && !has_nan(largest)) return;
      }
    float converted[kScoreParts][4];
    products_of_converted_keys(queries, query_row, keys, exponents[0], exponents[1], converted);
    memcpy(scores, converted, sizeof converted);
  }

  // Whether multiply_values() may take weights that lift() has multiplied.
  __device__ static bool lifts(const int (&exponents)[2]) {
    return kMoves && __all_sync(kAllLanes, max(exponents[0], exponents[1]) <= kMaxValueExponent);
  }
  // Multiplies weights by the scales of their values and by 2^kWeightLift.
  __device__ static void lift(const int (&exponents)[2], uint32_t (&high)[kKeyTile / 16][4],
                              uint32_t (&low)[kKeyTile / 16][4]) {
    const uint32_t own = bf16_pair(exponents, kWeightLift);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      const uint32_t x = __shfl_sync(kAllLanes, own, eight * 8 + lane % 4 * 2),
                     y = __shfl_sync(kAllLanes, own, eight * 8 + lane % 4 * 2 + 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows of the tile below 32, and the others
        const uint32_t factors = __byte_perm(x, y, half == 0 ? 0x5410 : 0x7632);
        const int key = half * 2 + eight / 2;
#pragma unroll
        for (int i = eight % 2 * 2; i < eight % 2 * 2 + 2; ++i) {
          high[key][i] = times_pair(high[key][i], factors);
          low[key][i] = times_pair(low[key][i], factors);
        }
      }
    }
  }
  // sums = weights (high + low) times values, columns [slice, slice + kSlice): lane l has in sums[2 p] of the slice's
  // p-th 16 columns those with numbers 4 (l % 4) and 4 (l % 4) + 2, in sums[2 p + 1] those after them. `lifted`: the
  // weights come from lift(). Returns whether an element is NaN, for which they must not.
  template <bool lifted>
  __device__ static bool multiply_values(uint32_t values, int slice, const int (&exponents)[2],
                                         const uint32_t (&high)[kKeyTile / 16][4],
                                         const uint32_t (&low)[kKeyTile / 16][4], float (&sums)[kSlice / 8][4]) {
    const int lane = threadIdx.x % 32;
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kSlice / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0;
#pragma unroll
    for (int key = 0; key < kKeyTile / 16; ++key) {
      uint32_t words[4];  // of 16 columns and the first eight rows, the other rows; then of the next columns
      load_matrices_transposed(words, values + place(key * 16 + (lane & 15), slice / 16 + (lane >> 4)));
      Fp8Pairs pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (lifted) {
          pairs[i] = moved_fp8(words[i], largest);
        } else {
          const int row = key * 16 + i % 2 * 8 + lane % 4 * 2;
          pairs[i] = converted_fp8<T>(words[i], scale_of_row(exponents, row), scale_of_row(exponents, row + 1));
        }
      }
#pragma unroll
      for (int j = 0; j < kSlice / 16; ++j) {
        const Fp8Pairs &first = pairs[2 * j], &second = pairs[2 * j + 1];
        multiply_add<T>(sums[2 * j], low[key], first.even, second.even);
        multiply_add<T>(sums[2 * j], high[key], first.even, second.even);
        multiply_add<T>(sums[2 * j + 1], low[key], first.odd, second.odd);
        multiply_add<T>(sums[2 * j + 1], high[key], first.odd, second.odd);
      }
    }
    return has_nan(largest);
  }

  // multiply_values<false>, which is rare and therefore apart: its registers are not those of the caller.
  __device__ __noinline__ static void multiply_converted_values(uint32_t values, int slice, int exponent0,
                                                                int exponent1, const uint32_t (&high)[kKeyTile / 16][4],
                                                                const uint32_t (&low)[kKeyTile / 16][4],
                                                                float (&sums)[kSlice / 8][4]) {
    const int exponents[2] = {exponent0, exponent1};
    multiply_values<false>(values, slice, exponents, high, low, sums);
  }

 private:
  __device__ static bool has_nan(uint32_t largest) {
    return __any_sync(kAllLanes, (largest & 0xffff) == kFp8NotANumber || largest >> 16 == kFp8NotANumber);
  }
  // The scale of a row of the tile.
  __device__ static float scale_of_row(const int (&exponents)[2], int row) {
    return scale_of(__shfl_sync(kAllLanes, row < 32 ? exponents[0] : exponents[1], row % 32));
  }
  // The scales of the lane's two rows times 2^lift, as bf16.
  __device__ static uint32_t bf16_pair(const int (&exponents)[2], int lift) {
    return static_cast<uint32_t>(exponents[0] + lift) << 7 | static_cast<uint32_t>(exponents[1] + lift) << 23;
  }

  // Elements of row 8 part + l / 4 for lane l, of 4 of the row's pieces: in the order of ldmatrix, which gives a lane
  // four neighbours. An instruction of sm_90 sums 16 products at once, so their order does not count; before, it sums
  // eight, which must be those that it sums for other types.
  __device__ static void load_keys(uint32_t keys, int part, int first_piece, uint32_t (&words)[4]) {
    const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    load_matrices(words, keys + place(part * 8 + lane % 8, first_piece + lane / 8));
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t from = keys + place(part * 8 + lane / 4, first_piece + i) + lane % 4 * 2;
      words[i] = __byte_perm(load_shared_u16(from), load_shared_u16(from + 8), 0x5140);
    }
#endif
  }

  template <bool moves>
  __device__ static void products_of_keys(uint32_t queries, int query_row, uint32_t keys, const int (&exponents)[2],
                                          float (&scores)[kScoreParts][4], uint32_t& largest) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = 0;
#pragma unroll 1
    for (int first = 0; first < kPieces; first += 4) {
      uint32_t query[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        load_matrices(query[m], queries + chunk_offset(query_row, 2 * (first + m) + (lane >> 4), width / 8));
        if constexpr (moves)
#pragma unroll
          for (int i = 0; i < 4; ++i) query[m][i] = times_pair(query[m][i], (127 + kQueryLift) * (1u << 23 | 1u << 7));
      }
#pragma unroll
      for (int j = 0; j < kScoreParts; ++j) {
        uint32_t words[4];
        load_keys(keys, j, first, words);
        const float scale = moves ? 1 : scale_of_row(exponents, j * 8 + lane / 4);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const Fp8Pairs pairs = moves ? moved_fp8(words[m], largest) : converted_fp8<T>(words[m], scale, scale);
          multiply_add<T>(scores[j], query[m], pairs.even, pairs.odd);
        }
      }
    }
  }

  // As multiply_converted_values().
  __device__ __noinline__ static void products_of_converted_keys(uint32_t queries, int query_row, uint32_t keys,
                                                                 int exponent0, int exponent1,
                                                                 float (&scores)[kScoreParts][4]) {
    const int exponents[2] = {exponent0, exponent1};
    uint32_t unused = 0;
    products_of_keys<false>(queries, query_row, keys, exponents, scores, unused);
  }

  // Multiplies scores by the keys' scales and 2^kScoreLift. Returns whether all of them are finite.
  __device__ static bool scale(const int (&exponents)[2], float (&scores)[kScoreParts][4]) {
    const uint32_t own = bf16_pair(exponents, kScoreLift);
    const int lane = threadIdx.x % 32;
    float zero = 0;  // NaN once there is a score that is not finite
#pragma unroll
    for (int j = 0; j < kScoreParts / 2; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t pair = __shfl_sync(kAllLanes, own, j * 8 + lane % 4 * 2 + i);
        const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float &x = scores[j][2 * r + i], &y = scores[j + kScoreParts / 2][2 * r + i];
          x *= low;
          y *= high;
          zero = fmaf(x, 0, fmaf(y, 0, zero));
        }
      }
    return __all_sync(kAllLanes, zero == 0);
  }
};

}  // namespace lfm2
