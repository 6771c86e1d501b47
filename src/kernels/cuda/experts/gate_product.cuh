// The product of tokens with the router's gate on tensor cores: how it is divided, and the order of its sums. The order
// is the same for every kernel, so that a token's experts are, too. For norm_route.cu and norm_route_swiglu.cu.
//
// A warp multiplies a slice of the rows. The product's rows are experts, its columns tokens. Lane (g, j) = (lane / 4,
// lane % 4) holds 8 elements of each chunk of its slice. It holds them of token g of a tile of tokens, and of experts g
// and g + 8 of a tile of experts.
//   elements of a chunk:   0 … 7   8 … 15   16 … 23   24 … 31
//   lanes:                 j = 0   j = 1    j = 2     j = 3
// Both operands may have their elements in any order along k, as long as it is the same.
#pragma once

#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2::gate_product {

constexpr int kSlices = kMaxTrees;    // of a row, at most: each has the elements of one tree of its sum of squares
constexpr int kSliceK = 32 * kOctet;  // elements of a slice
constexpr int kChunks = 8;            // pieces of a slice: 32 elements each, 8 for each lane of a quad
constexpr int kChunkK = kSliceK / kChunks;
// Tensor cores truncate their sums. After this many chunks the sums are added to other sums, with rounding.
constexpr int kPromoted = 2;
constexpr int kTileTokens = 8, kTileExperts = 16;  // what one mma multiplies

// d += the gate's rows times the tokens, over half of the lanes' elements of a chunk: `rows` are those of experts g and
// g + 8, and x those of token g. The halves come in order.
template <class Gate, int half>
__device__ __forceinline__ void multiply_half(float (&d)[4], const uint4 (&rows)[2], const uint4& x) {
  if constexpr (half == 0)
    multiply_add<Gate>(d, {rows[0].x, rows[1].x, rows[0].y, rows[1].y}, x.x, x.y);
  else
    multiply_add<Gate>(d, {rows[0].z, rows[1].z, rows[0].w, rows[1].w}, x.z, x.w);
}
// The token and the expert, in their tiles, to which the lane's sum d[i] belongs.
__device__ inline int token_of_sum(int i) { return static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }
__device__ inline int expert_of_sum(int i) { return static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8; }

// Adds the slices' sums for a token to its logits, in the slices' order. Lane l has the logits of experts l, l + 32, ….
template <int tokens, int stride, int sets>
__device__ __forceinline__ void add_slices(const float (*sums)[tokens][stride], int slices, int token,
                                           float (&logits)[sets]) {
  for (int slice = 0; slice < slices; ++slice)
#pragma unroll
    for (int s = 0; s < sets; ++s) logits[s] += sums[slice][token][threadIdx.x % 32 + 32 * s];
}

__device__ inline ChoiceRule rule_of(const NormRouteArgs& args, const float* bias) {
  return {bias, args.experts, args.top_k, args.normalize, args.scale};
}

}  // namespace lfm2::gate_product
