// One warp's part of norm_route_kernel: the norm of its slice of the tokens, their product with the gate, and the rows
// that it writes. The order of its operations for a token depends on the row's length alone.
#pragma once

#include <type_traits>

#include "kernels/cuda/experts/gate_product.cuh"
#include "kernels/cuda/experts/group_blocks.cuh"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/rows/fp8_rows.cuh"

namespace lfm2::gate_product {

constexpr int kWarps = kSlices;  // the most of a block: each has one slice

// The number of values of the gate's type whose sum is exactly x: one if the types are the same, three bf16 for an
// fp32. The three are truncated instead of rounded, so that nothing overflows.
template <class T, class Gate>
constexpr int kPlanes = std::is_same_v<T, Gate> ? 1 : 3;

template <class T, class Gate>
__device__ void split(const Packed<T>& x, uint4 (&planes)[kPlanes<T, Gate>]) {
  if constexpr (std::is_same_v<T, Gate>) {
    planes[0] = x.words[0];
  } else {
    static_assert(std::is_same_v<T, float> && std::is_same_v<Gate, __nv_bfloat16>);
    const auto* elements = reinterpret_cast<const uint32_t*>(&x);
    uint32_t words[3][kOctet / 2];
#pragma unroll
    for (int pair = 0; pair < kOctet / 2; ++pair) {
      uint32_t cut[2][3];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float rest = __uint_as_float(elements[2 * pair + i]);
        const bool finite = isfinite(rest);  // infinities and NaNs pass through as they are
#pragma unroll
        for (int p = 0; p < 3; ++p) {
          cut[i][p] = __float_as_uint(rest) & 0xffff0000u;
          rest = finite ? rest - __uint_as_float(cut[i][p]) : 0.0f;
        }
        if (!finite && elements[2 * pair + i] << 1 > 0xff000000u) cut[i][0] |= 0x00400000u;  // a NaN stays a NaN
      }
#pragma unroll
      for (int p = 0; p < 3; ++p) words[p][pair] = __byte_perm(cut[0][p], cut[1][p], 0x7632);
    }
#pragma unroll
    for (int p = 0; p < 3; ++p) planes[p] = {words[p][0], words[p][1], words[p][2], words[p][3]};
  }
}

// One warp's part of norm_route_kernel: a slice of the rows, of which its lanes have what gate_product.cuh defines.
template <class T, class Gate, int kExpertTiles>
struct NormRouteWarp {
  static constexpr int kExperts = kExpertTiles * kTileExperts;
  static constexpr bool kGroups = kExperts <= kMaxGrouped;
  using Sums = float[kExpertTiles][4];
  using Elements = Packed<T>[kChunks];
  struct GateChunk {
    uint4 rows[kExpertTiles][2];  // those of experts g and g + 8 of each tile
  };

  const NormRouteArgs& args;
  const int64_t hidden = args.hidden;
  int64_t first_token = static_cast<int64_t>(blockIdx.x) * kTileTokens;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, j = lane % 4;
  const int64_t warp_k = warp * kSliceK, first_k = warp_k + j * kOctet;
  Elements x;

  // Loads the norm's weights of the warp's elements, which its lanes share.
  __device__ __forceinline__ void load_scales(float (&scales)[kWarps * kSliceK]) const {
    const int64_t k = first_k + g * kChunkK;
    if (k < hidden) *reinterpret_cast<Octet*>(scales + k) = load_octet(args.norm_weight, k, kOctet, true);
    __syncwarp();
  }

  // The lane's elements of the gate's rows in one chunk.
  __device__ __forceinline__ GateChunk load_gate(int c) const {
    const auto* gate = static_cast<const Gate*>(args.gate.data) + first_k + c * kChunkK;
    GateChunk chunk;
#pragma unroll
    for (int m = 0; m < kExpertTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int expert = m * kTileExperts + half * 8 + g;
        chunk.rows[m][half] = {};
        if (expert < args.experts && warp_k + c * kChunkK < hidden)
          chunk.rows[m][half] = *reinterpret_cast<const uint4*>(gate + expert * hidden);
      }
    return chunk;
  }

  // elements = the lane's elements of the tokens from `first` on, with zeros for tokens that do not exist.
  __device__ __forceinline__ void load_tokens(int64_t first, Elements& elements) const {
    const int64_t token = first + g;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t k = first_k + c * kChunkK;
      elements[c] = {};
      if (token < args.tokens && k < hidden)
        elements[c] = load_packed(static_cast<const T*>(args.x) + token * hidden + k, kOctet, true);
    }
  }

  // trees = for each token, the sum of squares of the warp's elements, in the order of rms_norm (row_types.cuh).
  __device__ __forceinline__ void sum_squares(float (&trees)[kTileTokens][kWarps]) {
    float tree[kChunks];  // the lane's octets belong to the partial sums j, j + 4, …
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      tree[c] = add_squares(0, unpack(x[c]));
      forget(x[c]);
    }
#pragma unroll
    for (int step = kChunks / 2; step > 0; step /= 2)
#pragma unroll
      for (int c = 0; c < step; ++c) tree[c] += tree[c + step];
    tree[0] += __shfl_xor_sync(0xffffffffu, tree[0], 2);
    tree[0] += __shfl_xor_sync(0xffffffffu, tree[0], 1);
    if (j == 0) trees[g][warp] = tree[0];
  }

  // x = the normed tokens. With `stores`, they are also written to args.normed.
  __device__ __forceinline__ void norm_tokens(const float (&trees)[kTileTokens][kWarps],
                                              const float (&scales)[kWarps * kSliceK], bool stores) {
    float squares = 0;
    for (int w = 0; w < warps; ++w) squares += trees[g][w];
    const float factor = rms_factor(squares, hidden, args.eps);
    const int64_t token = first_token + g;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t k = first_k + c * kChunkK;
      if (k >= hidden) break;
      x[c] = pack<T>(scaled(unpack(x[c]), factor, *reinterpret_cast<const Octet*>(scales + k)));
      if (stores && token < args.tokens)
        store_packed(static_cast<T*>(args.normed) + token * hidden + k, x[c], kOctet, true);
    }
  }

  // maxima = for each token, the largest magnitude of the warp's elements.
  __device__ __forceinline__ void find_largest(float (&maxima)[kTileTokens][kWarps]) const {
    const float largest = max_over<4>(largest_of<0, kChunks>());
    if (j == 0) maxima[g][warp] = largest;
  }

  // Rounds the normed tokens to fp8, and writes each to `copies` rows: row_of(copy) returns a row to the lanes of its
  // token. The maxima are those of all warps.
  template <class F>
  __device__ __forceinline__ void store_fp8(const RoundedRows& out, const float (&maxima)[kTileTokens][kWarps],
                                            int copies, const F& row_of) const {
    constexpr int kGroupChunks = kScaledGroup / kChunkK;
    float largest = 0;
    for (int w = 0; w < warps; ++w) largest = fmaxf(largest, maxima[g][w]);
    store_fp8_group<0>(out, largest, copies, row_of);
    store_fp8_group<kGroupChunks>(out, largest, copies, row_of);
    static_assert(kChunks == 2 * kGroupChunks);
  }

  // part += the gate's rows times the tokens, over one chunk.
  __device__ __forceinline__ void multiply_chunk(int c, const GateChunk& gate, Sums& part) {
    uint4 planes[kPlanes<T, Gate>];
    split<T, Gate>(x[c], planes);
#pragma unroll
    for (int p = kPlanes<T, Gate> - 1; p >= 0; --p)  // the smallest plane first
#pragma unroll
      for (int m = 0; m < kExpertTiles; ++m) {
        multiply_half<Gate, 0>(part[m], gate.rows[m], planes[p]);
        multiply_half<Gate, 1>(part[m], gate.rows[m], planes[p]);
      }
  }

  // total = the gate's rows times the tokens, over the warp's elements. gate_of(c) is load_gate(c), or what that
  // returned before.
  template <class F>
  __device__ __forceinline__ void multiply_gate(F gate_of, Sums& total) {
    Sums part = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (warp_k + c * kChunkK < hidden) multiply_chunk(c, gate_of(c), part);
      if (c % kPromoted != kPromoted - 1) continue;
#pragma unroll
      for (int m = 0; m < kExpertTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[m][i] += part[m][i];
          part[m][i] = 0;
        }
    }
  }

  template <int stride>
  __device__ __forceinline__ void store_sums(const Sums& total, float (&sums)[kTileTokens][stride]) const {
#pragma unroll
    for (int m = 0; m < kExpertTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[token_of_sum(i)][m * kTileExperts + expert_of_sum(i)] = total[m][i];
  }

  // The warp handles every warps-th token: it adds the warps' sums in their order, and chooses the token's experts. The
  // block's choices go to ids and choice_weights.
  template <int stride>
  __device__ __forceinline__ void choose(const float (&sums)[kWarps][kTileTokens][stride], const float* bias,
                                         int32_t* ids, float* choice_weights) const {
    for (int t = warp; t < kTileTokens && first_token + t < args.tokens; t += warps) {
      float logits[kExperts / 32] = {};
      add_slices(sums, warps, t, logits);
      choose_experts(logits, rule_of(args, bias), ids + t * args.top_k, choice_weights + t * args.top_k);
    }
  }

  // The sorted row of a choice of the lane's token. Lane l has the row of assignment l.
  __device__ __forceinline__ int64_t sorted_row_of(int row_of_lane, int choice) const {
    return __shfl_sync(kAllLanes, row_of_lane, g * args.top_k + choice);
  }

  // Writes the normed tokens to their sorted rows.
  __device__ __forceinline__ void store_sorted(int row_of_lane) const {
    for (int choice = 0; choice < args.top_k; ++choice) {
      const int64_t row = sorted_row_of(row_of_lane, choice);
      if (first_token + g >= args.tokens) continue;
      T* const target = static_cast<T*>(args.sorted) + row * hidden;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        if (warp_k + c * kChunkK < hidden) store_packed(target + first_k + c * kChunkK, x[c], kOctet, true);
    }
  }

 private:
  // The largest magnitude of the lane's elements in these chunks.
  template <int first, int count>
  __device__ __forceinline__ float largest_of() const {
    float largest = 0;
#pragma unroll
    for (int c = first; c < first + count; ++c) largest = fmaxf(largest, largest_magnitude(unpack(x[c])));
    return largest;
  }

  // store_fp8 for the group of elements that begins with this chunk.
  template <int first, class F>
  __device__ __forceinline__ void store_fp8_group(const RoundedRows& out, float largest, int copies,
                                                  const F& row_of) const {
    constexpr int kGroupChunks = kScaledGroup / kChunkK;
    const Fp8Scale scale(out.by_group ? max_over<4>(largest_of<first, kGroupChunks>()) : largest);
    const int64_t group_k = warp_k + first * kChunkK;
    uint2 words[kGroupChunks];
#pragma unroll
    for (int c = 0; c < kGroupChunks; ++c) words[c] = scale.round(unpack(x[first + c]));
    for (int copy = 0; copy < copies; ++copy) {
      const int64_t row = row_of(copy);
      if (first_token + g >= args.tokens || group_k >= hidden) continue;
      if (j == 0 && (out.by_group || group_k == 0))
        out.scales[(out.by_group ? group_k / kScaledGroup : 0) * out.stride + row] = scale.value();
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c)
        if (group_k + c * kChunkK < hidden)
          lfm2::store_fp8(out.elements + row * hidden + first_k + (first + c) * kChunkK, words[c], kOctet, true);
    }
  }
};

}  // namespace lfm2::gate_product
