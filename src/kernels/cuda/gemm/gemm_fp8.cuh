// What gemm_wgmma_kernel.cuh does for fp8: the sums, and the rounding of a if a block rounds it itself. The tensor
// cores keep about 13 bits of their own sums of fp8 products, so the sums of each 128 of k are added in fp32, as
// DeepGEMM does (github.com/deepseek-ai/DeepGEMM, "promotion"). Scales of groups multiply these sums before the
// addition, scales of rows the final sum.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/fp8_scale.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_block.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace lfm2 {

// The two kinds of fp8 operands: a factor for each 128 of k, or one for the whole row.
struct Fp8ByGroup {
  uint8_t bits;
};
struct Fp8ByRow {
  uint8_t bits;
};
template <>
struct MmaType<Fp8ByGroup> : MmaType<__nv_fp8_e4m3> {};
template <>
struct MmaType<Fp8ByRow> : MmaType<__nv_fp8_e4m3> {};

namespace wgmma_tiles {

// The first of the two rows, of the instruction's 64, of which this thread holds sums; the other one is 8 further.
__device__ inline int warpgroup_row() {
  return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
}

// The factors of a thread's sums, for an instruction with `columns` columns. Sum 4 j + i belongs to the thread's own
// row of the instruction (i < 2) or the row 8 further, and to column 8 j + 2 (lane % 4) + i % 2. Rows are rows of a and
// columns rows of w; with `transposed`, the other way around. Outside of a or w the factor is 0.
template <class T, int columns, bool transposed>
class Fp8Scales {
 public:
  static constexpr bool kByGroup = std::is_same_v<T, Fp8ByGroup>;
  struct Factors {
    float rows[2];
    float columns_of[columns / 8][2];
  };

  // `row` is a row of a, `column` a row of w. The one that is the instruction's row is the thread's own; the other one
  // is the instruction's first column.
  __device__ Fp8Scales(const GemmArgs& args, int group, int row, int column)
      : a_(args.scales.a + row),
        w_(args.scales.w + column / kWRows),
        a_stride_(static_cast<int>(args.scales.a_stride)),
        w_stride_(static_cast<int>(args.n) / kWRows),
        a_left_(static_cast<int>(args.m) - row),
        w_left_(static_cast<int>(args.n) - column),
        last_(kByGroup ? static_cast<int>((args.k + kGroup - 1) / kGroup) - 1 : 0) {
    w_ += static_cast<int64_t>(group) * w_stride_ * (last_ + 1);
    in_fours_ = columns % 32 == 0 && w_left_ >= columns && w_stride_ % 4 == 0;
  }

  // Reads the factors of a, one for each row, from [rows] in shared memory.
  __device__ void set_a(const float* a, int rows) { a_ = a, a_left_ = rows; }

  // The factors of this piece of k.
  __device__ Factors read(int piece) const {
    const int at = min(piece, last_);
    const float *a = a_ + static_cast<int64_t>(at) * a_stride_, *w = w_ + static_cast<int64_t>(at) * w_stride_;
    Factors factors;
    if constexpr (transposed) {
      factors.rows[0] = w_left_ > 0 ? __ldg(w) : 0, factors.rows[1] = w_left_ > 8 ? __ldg(w + 8 / kWRows) : 0;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) factors.columns_of[j][i] = 8 * j + pair() + i < a_left_ ? a[8 * j + pair() + i] : 0;
    } else {
      factors.rows[0] = a_left_ > 0 ? __ldg(a) : 0, factors.rows[1] = a_left_ > 8 ? __ldg(a + 8) : 0;
      if (kByGroup && in_fours_) {
#pragma unroll
        for (int j = 0; j < columns / 8; j += 4) {
          const float4 four = __ldg(reinterpret_cast<const float4*>(w + j));
          const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int i = 0; i < 4 && j + i < columns / 8; ++i)
            factors.columns_of[j + i][0] = factors.columns_of[j + i][1] = each[i];
        }
      } else {
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
          const bool inside = 8 * j < w_left_;  // n is a multiple of 8
          if constexpr (kByGroup) {
            factors.columns_of[j][0] = factors.columns_of[j][1] = inside ? __ldg(w + j) : 0;
          } else {
            const float2 two = inside ? __ldg(reinterpret_cast<const float2*>(w + 8 * j + pair())) : float2{};
            factors.columns_of[j][0] = two.x, factors.columns_of[j][1] = two.y;
          }
        }
      }
    }
    return factors;
  }

 private:
  static constexpr int kGroup = 128, kWRows = kByGroup ? 8 : 1;

  __device__ static int pair() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  const float *a_, *w_;  // of the first row of a and of w
  int a_stride_, w_stride_, a_left_, w_left_, last_;
  bool in_fours_;  // the factors of all columns exist, in words of four
};

// sums = Σ over pieces of k of their scaled sums. start(part, buffer, a, w, first) starts a step of k, as for_each_step
// calls it; if the block rounds a, the offset of a counts from its first piece. The factors of a piece are read while
// the previous piece is multiplied.
template <WgmmaTile tile, class T, int columns, bool transposed, class F>
__device__ __forceinline__ void add_scaled_pieces(Block<tile>& block, float (&sums)[columns / 2],
                                                  const Fp8Scales<T, columns, transposed>& scales, const F& start) {
  using S = Shape<tile>;
  static_assert(!tile.rounds || S::kPieces == 1);
  constexpr bool kByGroup = Fp8Scales<T, columns, transposed>::kByGroup;
  float part[columns / 2];
  auto factors = scales.read(0), next = factors;
  for (int round = 0; round < block.rounds; ++round) {
    if (round > 0) block.ring.wait_full();
    const WgmmaOperand buffer(block.ring.buffer());
#pragma unroll
    for (int piece = 0; piece < S::kPieces; ++piece) {
      wgmma_keep(part);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        start(part, buffer, ((tile.rounds ? round + piece : piece) * S::kAPiece >> 4) + step * kWgmmaStep,
              (S::kABytes + piece * S::kWPiece >> 4) + step * kWgmmaStep, step == 0);
      wgmma_commit();
      if constexpr (kByGroup) next = scales.read(round * S::kPieces + piece + 1);
      wgmma_wait<0>();
      wgmma_keep(part);
      const bool is_last = piece + 1 == S::kPieces;  // of the tile buffer
      if (is_last && static_cast<int>(threadIdx.x) % 32 < tile.cluster)
        barrier_arrive_at(block.ring.free(), threadIdx.x % 32);
#pragma unroll
      for (int i = 0; i < columns / 2; ++i)
        sums[i] = kByGroup ? fmaf(part[i], factors.rows[i / 2 % 2] * factors.columns_of[i / 4][i % 2], sums[i])
                           : part[i] + sums[i];
      if constexpr (kByGroup) factors = next;
    }
    block.ring.next();
  }
#pragma unroll
  for (int i = 0; i < columns / 2 && !kByGroup; ++i)
    // Rounded separately: if the compiler joined it with a following addition, rows would depend on the tile's kind.
    sums[i] = __fmul_rn(sums[i], factors.rows[i / 2 % 2] * factors.columns_of[i / 4][i % 2]);
}

// The warps that multiply round the rows of a tile to fp8. Returns the scales of all rows, in shared memory, which are
// valid until the next call.
template <WgmmaTile tile>
__device__ __forceinline__ const float* round_rows(const GemmArgs& args, const TileCoord& place, int rows,
                                                   const Block<tile>& block) {
  using S = Shape<tile>;
  constexpr int kThreads = S::kMultipliers * kWarpgroup, kOctets = kMaxRoundedK / kOctet / kThreads;  // of a thread
  constexpr int kRowsAtOnce = 8 / kOctets;
  __shared__ float maxima[tile.rows][kThreads / 32];
  __shared__ float scales[tile.rows];
  const int thread = static_cast<int>(threadIdx.x), k = static_cast<int>(args.k);
  const auto column = [&](int i) { return (thread + kThreads * i) * kOctet; };
  for (int first = 0; first < rows; first += kRowsAtOnce) {
    Octet elements[kRowsAtOnce][kOctets];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
#pragma unroll
      for (int i = 0; i < kOctets; ++i) {
        elements[r][i] = {};
        const auto* source =
            static_cast<const __nv_bfloat16*>(args.a) + static_cast<int64_t>(place.first_row + first + r) * k;
        if (first + r < rows && column(i) < k) elements[r][i] = load_octet(source + column(i), kOctet, true);
      }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kOctets; ++i) largest = fmaxf(largest, largest_magnitude(elements[r][i]));
      largest = max_over<32>(largest);
      if (thread % 32 == 0 && first + r < rows) maxima[first + r][thread / 32] = largest;
    }
    named_barrier<kThreads>();  // also: the rows of the previous tile are multiplied
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (first + r >= rows) break;
      float largest = 0;
      for (int warp = 0; warp < kThreads / 32; ++warp) largest = fmaxf(largest, maxima[first + r][warp]);
      const Fp8Scale scale(largest);
      if (thread == 0) scales[first + r] = scale.value();
#pragma unroll
      for (int i = 0; i < kOctets; ++i) {
        const int piece = column(i) / kRowBytes, byte = column(i) % kRowBytes;
        if (piece >= block.rounds) continue;  // the last piece is filled up with zeros
        const uint32_t target = block.rounded + piece * S::kAPiece + (first + r) * kRowBytes +
                                (byte / 16 ^ (first + r) % 8) * 16 + byte % 16;
        *static_cast<uint2*>(__cvta_shared_to_generic(target)) = scale.round(elements[r][i]);
      }
    }
  }
  fence_proxy_async();
  named_barrier<kThreads>();
  return scales;
}

}  // namespace wgmma_tiles

}  // namespace lfm2
