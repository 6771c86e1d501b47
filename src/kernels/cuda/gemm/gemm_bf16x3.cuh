// Splits fp32 values into sums of three bf16 planes, and recomputes the sums for which planes may fail. Shared by the
// two kernels that multiply planes.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/gemm/launch.h"

namespace lfm2::bf16x3 {

constexpr int kPlanes = 3;

// The planes of two values, packed as one pair for each plane. Values are truncated instead of rounded, so that nothing
// overflows and the third plane is exact. An infinity leaves NaN in the other planes, and bf16 ends at 2^-133;
// redo_doubtful corrects the sums of both.
__device__ inline void split(float even, float odd, uint32_t& first, uint32_t& second, uint32_t& third) {
  const auto cut = [](float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); };
  const auto pack = [](float x, float y) { return __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632); };
  first = pack(even, odd);
  even -= cut(even);
  odd -= cut(odd);
  second = pack(even, odd);
  third = pack(even - cut(even), odd - cut(odd));
}

// Loads four consecutive elements as fp32, and ORs their bits into `bits`.
__device__ inline float4 load_four(const float* p, uint32_t& bits) {
  const float4 x = *reinterpret_cast<const float4*>(p);
  bits |= __float_as_uint(x.x) | __float_as_uint(x.y) | __float_as_uint(x.z) | __float_as_uint(x.w);
  return x;
}
__device__ inline float4 load_four(const __nv_bfloat16* p, uint32_t& bits) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  bits |= x.x | x.y;
  return {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
          __uint_as_float(x.y & 0xffff0000u)};
}

// A warp computes four sums of one row over k, a multiple of 4: those of every second column from `column` on. It
// computes in fp64, where products are exact, in an order that depends on k alone. Rows of w beyond `last` are not
// read. a_bits and w_bits become the OR of all bits that the lanes have read.
template <class W>
__device__ float4 sum_in_double(int lane, const float* a, const W* w, int64_t k, int column, int last, uint32_t& a_bits,
                                uint32_t& w_bits) {
  constexpr int kSums = 4;
  double sums[kSums] = {};
  a_bits = w_bits = 0;
#pragma unroll 2
  for (int64_t i = lane * 4; i < k; i += 32 * 4) {
    const float4 x = load_four(a + i, a_bits);
#pragma unroll
    for (int c = 0; c < kSums; ++c) {
      const float4 y = load_four(w + min(column + 2 * c, last) * k + i, w_bits);
      sums[c] = fma(double{x.x}, double{y.x}, sums[c]);
      sums[c] = fma(double{x.y}, double{y.y}, sums[c]);
      sums[c] = fma(double{x.z}, double{y.z}, sums[c]);
      sums[c] = fma(double{x.w}, double{y.w}, sums[c]);
    }
  }
  a_bits = __reduce_or_sync(0xffffffffu, a_bits);
  w_bits = __reduce_or_sync(0xffffffffu, w_bits);
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
#pragma unroll
    for (int c = 0; c < kSums; ++c) sums[c] += __shfl_xor_sync(0xffffffffu, sums[c], step);
  return {static_cast<float>(sums[0]), static_cast<float>(sums[1]), static_cast<float>(sums[2]),
          static_cast<float>(sums[3])};
}

// Whether planes may have given a wrong sum. Infinite and NaN sums are doubtful, because infinite values have no
// planes. Sums below kSmall, also zero, are doubtful for two reasons: the planes of values below 2^-110 lack bits,
// 2^-133 at most, and tensor cores truncate below 2^-149. In larger sums that does not matter, unless there are values
// above 2^60 as well.
constexpr float kSmall = 0x1p-40f;
__device__ inline bool doubtful(float sum) { return !(fabsf(sum) >= kSmall && isfinite(sum)); }

// Where a thread's sums belong: in pieces of 16 rows by 8 columns as mma.sync leaves them, `column_pieces` side by
// side. In the first piece:
//                columns `column` + {0, 1}
//   `row`        sums[0]  sums[1]
//   `row` + 8    sums[2]  sums[3]
// The next piece is 8 columns further; after the last piece of a row of pieces, it is 16 rows further.
template <int column_pieces>
struct SumPlaces {
  static constexpr int kPieceRow = 4 * column_pieces;

  int row, end_row, column;

  __device__ int row_of(int i) const { return row + i / kPieceRow * 16 + i / 2 % 2 * 8; }
  __device__ int column_of(int i) const { return column + i / 4 % column_pieces * 8 + i % 2; }
  // A bit for each of the sums that share i's row.
  __device__ static uint64_t row_bits(int i) {
    constexpr uint64_t kFirst = 0x3333333333333333u >> (64 - kPieceRow);
    return kFirst << (i / kPieceRow * kPieceRow + i / 2 % 2 * 2);
  }
};

// Whether any of the warp's sums is doubtful, in few instructions. The result may also be true if the only doubtful
// sums lie outside the columns, or in rows beyond a thread's first sixteen.
template <int column_pieces, int size>
__device__ bool any_doubtful(const SumPlaces<column_pieces>& places, const float (&sums)[size]) {
  constexpr int kChains = 4;  // two for each row
  float probe[kChains] = {}, least[kChains];
#pragma unroll
  for (float& x : least) x = INFINITY;
#pragma unroll
  for (int i = 0; i < size; ++i) {
    probe[i % kChains] = fmaf(sums[i], 0.0f, probe[i % kChains]);  // becomes NaN at an infinity or a NaN
    least[i % kChains] = fminf(least[i % kChains], fabsf(sums[i]));
  }
  const auto doubtful_row = [&](int chain) {
    return !(fminf(least[chain], least[chain + 1]) + (probe[chain] + probe[chain + 1]) >= kSmall);
  };
  const bool any =
      (places.row < places.end_row && doubtful_row(0)) || (places.row + 8 < places.end_row && doubtful_row(2));
  return __any_sync(0xffffffffu, any);
}

// Recomputes doubtful sums from the operands: small ones in fp64, the others as a chain of fp32 multiply-adds. Each is
// computed separately, so that a row's bits do not depend on its neighbours. All lanes of the warp must call this.
template <class W, int column_pieces, int size>
__device__ __noinline__ void redo_each(const GemmArgs& args, int64_t group, const SumPlaces<column_pieces> places,
                                       float* sums) {
  static_assert(size <= 64);
  uint64_t left = 0;  // a bit for each sum to compute
#pragma unroll 1
  for (int i = 0; i < size; ++i)
    if (doubtful(sums[i]) && places.row_of(i) < places.end_row && places.column_of(i) < args.n)
      left |= uint64_t{1} << i;
  const auto* a = static_cast<const float*>(args.a);
  const auto* w = static_cast<const W*>(args.w.data) + group * args.n * args.k;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  while (true) {
    const int i = __reduce_min_sync(0xffffffffu, left == 0 ? 64 : __ffsll(static_cast<long long>(left)) - 1);
    if (i == 64) return;
    const bool mine = (left >> i & 1) != 0;
    left &= ~(uint64_t{1} << i);
    float sum = sums[i];
    const bool small = mine && isfinite(sum);
    if (mine && !small) {
      const float* row = a + int64_t{places.row_of(i)} * args.k;
      const W* column = w + int64_t{places.column_of(i)} * args.k;
      sum = 0;
#pragma unroll 4
      for (int64_t k = 0; k < args.k && !isnan(sum); ++k) sum = fmaf(row[k], to_f32(column[k]), sum);
    }
    unsigned lanes = __ballot_sync(0xffffffffu, small);
    while (lanes != 0) {  // four lanes share a row; their columns are every second one of eight
      const int first = (__ffs(lanes) - 1) / 4 * 4;
      lanes &= ~(0xfu << first);
      const int row = __shfl_sync(0xffffffffu, places.row_of(i), first),
                column = __shfl_sync(0xffffffffu, places.column_of(i), first);
      uint32_t a_bits, w_bits;
      const float4 four =
          sum_in_double(lane, a + row * args.k, w, args.k, column, static_cast<int>(args.n) - 1, a_bits, w_bits);
      const bool here = lane / 4 == first / 4;
      if (small && here) sum = lane % 4 == 0 ? four.x : lane % 4 == 1 ? four.y : lane % 4 == 2 ? four.z : four.w;
      if (w_bits == 0) break;  // w is zero here, so these sums are zeros for every row already
      if (a_bits == 0 && here) left &= ~places.row_bits(i);
    }
    if (mine) sums[i] = sum;
  }
}

// Recomputes doubtful sums if there are any. The loops are not inlined, because they would take registers from the
// multiplication and slow it down.
template <class W, int column_pieces, int size>
__device__ void redo_doubtful(const GemmArgs& args, int64_t group, const SumPlaces<column_pieces>& places,
                              float (&sums)[size]) {
  if (args.k == 0 || !any_doubtful(places, sums)) return;
  float copy[size];
#pragma unroll
  for (int i = 0; i < size; ++i) copy[i] = sums[i];
  redo_each<W, column_pieces, size>(args, group, places, copy);
#pragma unroll
  for (int i = 0; i < size; ++i) sums[i] = copy[i];
}

}  // namespace lfm2::bf16x3
