// norm_route_swiglu: the norm before the router, the choice of experts, and their gate-and-up product, for few tokens
// in one kernel. Every block norms and routes all tokens itself, so that it waits for no other cluster, and multiplies
// its units of the product with the normed rows that it keeps. gemm_skinny.cu explains how such a product is computed.
//
// The two blocks of a cluster share the product with the router's gate. So each can load its half of the gate into
// registers before the wait: no kernel writes the gate.
//
// If w is fp8, the block rounds the normed rows, and an instruction multiplies four tiles of w with all tokens
// (skinny_fp8.cuh).
//
// The bits are those of norm_route_kernel and gemm_skinny.cu or gemm_fp8.cu, one after the other.
#include <algorithm>

#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/experts/gate_product.cuh"
#include "kernels/cuda/experts/group_blocks.cuh"
#include "kernels/cuda/fused/few_fp8_rows.h"
#include "kernels/cuda/fused/front_norm.cuh"
#include "kernels/cuda/fused/skinny_fp8.cuh"
#include "kernels/cuda/gemm/gemm_skinny_units.cuh"

namespace lfm2 {

namespace {

using namespace skinny;
using namespace gate_product;

constexpr int kCluster = 2, kBlockSlices = kSlices / kCluster;
constexpr int kExpertTiles = kMaxGrouped / kTileExperts;
// When the next kernel may read the routing.
constexpr Visible kShownRouting = Visible::kBeforeWait;
constexpr int kRoutedTiles = 5;  // of a unit, if there are rows of many tokens (choose_tiles)
static_assert(kBlockSlices * kExpertTiles * 32 == kNormThreads, "a warp has one tile of experts of one slice");

// The slices' sums. The blocks of a cluster write them into each other's memory, in place of the first tile buffers.
using SliceSums = float[kSlices][kTileTokens][kMaxGrouped];

struct RoutingMemory {  // shared
  int32_t ids[kMaxGrouped];
  float weights[kMaxGrouped];
  float bias[kMaxGrouped];
  uint64_t barrier;  // of hopper.cuh: it counts the bytes of the sums
};

__device__ void start_cluster(const NormRouteArgs& args, RoutingMemory& memory);
template <class T>
class GateTile;
__device__ __noinline__ void choose(const NormRouteArgs& args, uint32_t sums, RoutingMemory& memory);
__device__ int expert_of_lane(const NormRouteArgs& args, const RoutingMemory& memory);
__device__ void store_routing(const NormRouteArgs& args, const SortedLane& sorted, const float* weights);
template <class T, int instructions>
__device__ void multiply_fp8_units(const NormRouteSwigluArgs& args, const Layout& layout, const Block& block,
                                   const Fp8Rows& rows, const SortedLane& sorted, const Ballots<5>& ballots,
                                   UnitScheduler scheduler);

// - operands: x [tokens, hidden] of type T, norm_weight [hidden] and gate [experts, hidden] of the same, bias [experts]
//   fp32 or null; w [experts, n, hidden] of type T or, with `fp8`, of fp8 with a scale for each row; out the routing,
//   and out [tokens top_k, n / 2] of type T. product.a is x, product.offsets is not read.
// - block: norms and routes all tokens, up to kMaxRoutedTokens, with the other block of its cluster (GateTile); then it
//   processes units as gemm_skinny_kernel does.
// - thread: see FrontNorm, GateTile and choose; then as in gemm_skinny_kernel. `fp8`: the last warps round a token each
//   before the choice, and the first four multiply (multiply_fp8_units).
// - alignment: hidden a multiple of kChunkK (`fp8`: of kFp8KStep), n in sixteens, everything on 16 bytes.
template <class T, bool fp8>
__global__ void __launch_bounds__(kNormThreads, 2)
    norm_route_swiglu_kernel(const __grid_constant__ CUtensorMap w_map,
                             const __grid_constant__ NormRouteSwigluArgs args, const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ RoutingMemory memory;
  const auto& [product, route] = args;
  if constexpr (kShownRouting == Visible::kAfterWait) pdl_trigger();
  start_cluster(route, memory);
  __shared__ float scales[kRowGroup];
  const Fp8Rows rounded_rows(shared, scales);
  const Block block = start_block(shared + (fp8 ? fp8_row_bytes(product.k) : 0), &w_map, &w_map, layout,
                                  fp8 ? fp8_words(product.k) : product.k);
  Block normed = block;  // of 16 bits
  if constexpr (fp8) normed.pieces = static_cast<int>(product.k / kDepth);
  const FrontNorm<T> norm(product, {route.norm_weight, route.eps}, layout, normed);
  const GateTile<T> gate(route);
  const bool has_bias = route.bias != nullptr && static_cast<int>(threadIdx.x) < route.experts;
  const float bias = has_bias ? route.bias[threadIdx.x] : 0.0f;
  __syncwarp();    // the lanes reach the barrier together
  cluster_wait();  // the other block has started
  pdl_wait();
  norm.start();
  if (has_bias) memory.bias[threadIdx.x] = bias;
  wait_copies<0>();
  norm.finish_in_line();
  float total[4];
  gate.multiply(block.kept, total);
  gate.share(total, block.buffers, memory);
  if constexpr (fp8) {
    const int token = kNormThreads / 32 - 1 - static_cast<int>(threadIdx.x / 32);
    if (token < route.tokens)
      round_kept_row<T>(rounded_rows, token, block.kept, layout.kept_rows, static_cast<int>(product.k));
  }
  choose(route, block.buffers, memory);
  fence_proxy_async();  // the copy engine writes where the sums were
  __syncthreads();
  // Every warp sorts the assignments itself, and its lane l handles expert l.
  const int warp = threadIdx.x / 32, expert = expert_of_lane(route, memory);
  const Ballots<5> ballots(expert);
  const int count = __popc(ballots.lanes(static_cast<int>(threadIdx.x % 32)));
  const SortedLane sorted(expert, ballots, count, 0);
  if (warp == 0) store_routing(route, sorted, memory.weights);
  const auto scheduler = [&] {
    return UnitScheduler(product, kRowGroup, layout.unit_columns, sorted.end - count, sorted.end);
  };
  // With `fp8` the first warps multiply, also if there are fewer tiles.
  if (warp == (fp8 ? kNormThreads / 32 - 1 : layout.tiles)) {
    load_buffers(product, &w_map, &w_map, layout, block, scheduler, [] {});
  } else if constexpr (fp8) {
    if (warp >= kFp8Warps) return;
    if (layout.tiles > kFp8Warps)
      multiply_fp8_units<T, 2>(args, layout, block, rounded_rows, sorted, ballots, scheduler());
    else
      multiply_fp8_units<T, 1>(args, layout, block, rounded_rows, sorted, ballots, scheduler());
  } else if (warp < layout.tiles) {
    const Ballots<5> by_row(expert >= 0 ? sorted.row : -1);
    multiply_units<T, 1, true>(product, false, layout, block, [&](int first_row, int rows) {
      const int row = first_row + min(row_of_lane<1>(), rows - 1);
      return (__ffs(static_cast<int>(by_row.lanes(row))) - 1) / route.top_k;  // its token
    });
  }
}

// Every thread calls this first.
__device__ void start_cluster(const NormRouteArgs& args, RoutingMemory& memory) {
  if (threadIdx.x == 0) {
    const uint32_t barrier = shared_address(&memory.barrier);
    barrier_init(barrier, 1);
    barrier_init_fence();
    barrier_expect(barrier, static_cast<uint32_t>(sizeof(SliceSums) / kTileTokens * args.tokens));
  }
  __syncwarp();
  cluster_arrive();
}

// A warp's part of the product with the gate: one slice and one tile of experts.
template <class T>
class GateTile {
 public:
  // Loads the gate's rows.
  __device__ __forceinline__ explicit GateTile(const NormRouteArgs& args) : args_(args) {
    const int hidden = static_cast<int>(args.hidden);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int expert = tile_ * kTileExperts + half * 8 + lane_ / 4, k = octet_of(c) * kOctet;
        rows_[c][half] = {};
        if (expert < args.experts && k < hidden)
          rows_[c][half] = *reinterpret_cast<const uint4*>(static_cast<const T*>(args.gate.data) + expert * hidden + k);
      }
  }

  // total = the gate's rows times the tokens, which the block keeps. Chunks beyond the end of a row are zeros, which
  // change no sum. The sums that are promoted do not depend on each other, so they are computed side by side.
  __device__ __forceinline__ void multiply(uint32_t kept, float (&total)[4]) const {
    constexpr int kSums = kChunks / kPromoted;
    float sums[kSums][4] = {};
#pragma unroll
    for (int step = 0; step < kPromoted; ++step) {
      uint4 x[kSums];
#pragma unroll
      for (int s = 0; s < kSums; ++s) x[s] = load_token(kept, s * kPromoted + step);
#pragma unroll
      for (int s = 0; s < kSums; ++s) multiply_half<T, 0>(sums[s], rows_[s * kPromoted + step], x[s]);
#pragma unroll
      for (int s = 0; s < kSums; ++s) multiply_half<T, 1>(sums[s], rows_[s * kPromoted + step], x[s]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total[i] = 0;
#pragma unroll
      for (int s = 0; s < kSums; ++s) total[i] += sums[s][i];
    }
  }

  // Writes the sums into the memory of all blocks of the cluster. Slices beyond the end of a row are zeros.
  __device__ __forceinline__ void share(const float (&total)[4], uint32_t to, RoutingMemory& memory) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = token_of_sum(i), expert = tile_ * kTileExperts + expert_of_sum(i);
      const int place = (slice_ * kTileTokens + token) * kMaxGrouped + expert;
      if (token >= args_.tokens) continue;
#pragma unroll
      for (uint32_t block = 0; block < kCluster; ++block)
        store_at(to + place * static_cast<uint32_t>(sizeof(float)), __float_as_uint(total[i]),
                 shared_address(&memory.barrier), block);
    }
  }

 private:
  // The lane's octet of a row in one of the slice's chunks.
  __device__ __forceinline__ int octet_of(int c) const { return (slice_ * kSliceK + c * kChunkK) / kOctet + lane_ % 4; }
  __device__ __forceinline__ uint4 load_token(uint32_t kept, int c) const {
    const int tokens = static_cast<int>(args_.tokens), token = lane_ / 4, octet = octet_of(c);
    return load_shared_if(token < tokens && octet * kOctet < args_.hidden, kept_octet(kept, tokens, token, octet));
  }

  const NormRouteArgs& args_;
  int lane_ = threadIdx.x % 32, tile_ = threadIdx.x / 32 % kExpertTiles;
  int slice_ = static_cast<int>(cluster_rank()) * kBlockSlices + static_cast<int>(threadIdx.x) / 32 / kExpertTiles;
  uint4 rows_[kChunks][2];
};

// Each of the first warps chooses one token's experts, once all sums have arrived. Not inlined, because the compiler of
// CUDA 13.0 would not finish.
__device__ __noinline__ void choose(const NormRouteArgs& args, uint32_t sums, RoutingMemory& memory) {
  const int token = static_cast<int>(threadIdx.x) / 32, first = token * args.top_k;
  if (token >= args.tokens) return;
  barrier_wait(shared_address(&memory.barrier), 0);
  float logits[1] = {};
  add_slices(*static_cast<const SliceSums*>(__cvta_shared_to_generic(sums)), kSlices, token, logits);
  choose_experts(logits, rule_of(args, args.bias != nullptr ? memory.bias : nullptr), memory.ids + first,
                 memory.weights + first);
}

// The expert of assignment l on lane l, or -1.
__device__ int expert_of_lane(const NormRouteArgs& args, const RoutingMemory& memory) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return lane < static_cast<int>(args.tokens) * args.top_k ? memory.ids[lane] : -1;
}

// One warp writes the routing. The next kernel may start when every block has come here, and then finds the routing in
// L2 (dependent_launch.cuh).
__device__ void store_routing(const NormRouteArgs& args, const SortedLane& sorted, const float* weights) {
  if (blockIdx.x == 0) {
    sorted.store_routing(args, 0, weights);
    __threadfence();
    __syncwarp();
  }
  if constexpr (kShownRouting == Visible::kBeforeWait) pdl_trigger();
}

// What the four warps that multiply fp8 do. The columns of an instruction are the tokens, so each lane finds the sorted
// rows of its two tokens.
template <class T, int instructions>
__device__ void multiply_fp8_units(const NormRouteSwigluArgs& args, const Layout& layout, const Block& block,
                                   const Fp8Rows& rows, const SortedLane& sorted, const Ballots<5>& ballots,
                                   UnitScheduler scheduler) {
  const GemmArgs& product = args.product;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int top_k = args.route.top_k, n = static_cast<int>(product.n), tokens = static_cast<int>(args.route.tokens);
  const WgmmaOperand operand(rows.address);
  UnitScheduler::Unit unit;
  Turn turn;
  while (scheduler.next(unit)) {
    const unsigned own = ballots.lanes(unit.group);  // assignments to the unit's expert
    int row_of[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = lane % 4 * 2 + i, first = token < tokens ? token * top_k : 0;
      const int choice = __ffs(static_cast<int>(own >> first)) - 1;
      const int row = __shfl_sync(kAllLanes, sorted.row, (first + choice) & 31);
      row_of[i] = token < tokens && choice >= 0 && choice < top_k ? row : -1;
    }
    const auto column_of = [&](int i) { return unit.first_column + (i * kFp8Warps + warp) * kTile; };
    Fp8Factors factors[instructions];
#pragma unroll
    for (int i = 0; i < instructions; ++i) factors[i].load(product, unit.group, column_of(i));
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    float sums[instructions][4] = {};
    multiply_fp8(layout, block, turn, operand, sums);
#pragma unroll
    for (int i = 0; i < instructions; ++i) {
      const int column = column_of(i);
      if (i * kFp8Warps + warp >= layout.tiles || column >= n) continue;
      factors[i].scale(rows, sums[i]);
#pragma unroll
      for (int j = 0; j < 2; ++j)  // the second eight rows of the tile are those of the up rows
        if (row_of[j] >= 0)
          static_cast<T*>(product.out)[static_cast<int64_t>(row_of[j]) * (n / 2) + column / 2 + lane / 4] =
              rounded<T>(silu(sums[i][j]) * sums[i][j + 2]);
    }
  }
}

template <class T, bool fp8>
void launch_routed_product(cudaStream_t stream, NormRouteSwigluArgs args, DType act) {
  GemmArgs& product = args.product;
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  constexpr int kUsed = kNormBytes + static_cast<int>(sizeof(RoutingMemory) + kRowGroup * sizeof(float));
  const Share share = share_of(Kernel::kRoutedProduct, args.route.tokens).without(kUsed);
  // The sums fit into the tile buffers, which take at least half of what the kept rows leave.
  static_assert((share_of(Kernel::kRoutedProduct, kMaxRoutedTokens).bytes - kUsed -
                 kMaxRoutedTokens * kMaxFrontNormedK * static_cast<int>(sizeof(T))) /
                    2 >=
                static_cast<int>(sizeof(SliceSums)));
  const int tiles = choose_tiles(product, multiprocessors, kRoutedTiles);
  Layout layout = layout_with_kept(tiles, args.route.tokens, product.k, share);
  if constexpr (fp8)
    layout = fp8_layout(tiles, true, product.k, share, kept_row_bytes(args.route.tokens, product.k), args.route.tokens);
  const CUtensorMap w_map = pieces_map(product.w.data, fp8 ? DType::kF8 : act, product.groups, product.n, product.k,
                                       layout.box_tiles * kTile, fp8 ? kFp8Depth : kDepth, layout.pieces);
  const int64_t units =
      row_tile_bound(product.m, product.groups, kRowGroup) * ceil_divide(product.n, layout.tiles * kTile);
  const int64_t blocks = ceil_divide(std::min<int64_t>(units, multiprocessors), kCluster) * kCluster;
  product.offsets_visible = Visible::kBeforeWait;  // every block computes them itself
  constexpr auto kernel = norm_route_swiglu_kernel<T, fp8>;
  allow_shared_bytes<kernel, max_bytes(Kernel::kRoutedProduct) - kUsed>();
  launch_dependent("norm_route_swiglu_kernel", kernel, {blocks, kNormThreads, share.bytes, kCluster}, stream, w_map,
                   args, layout);
}

}  // namespace

Visible launch_norm_route_swiglu(cudaStream_t stream, const NormRouteSwigluArgs& args, DType act) {
  static_assert(kMaxRoutedTokens <= kTileTokens && kTileTokens == kRowGroup && kSlices * kSliceK <= kMaxFrontNormedK);
  if (args.product.w.dtype == DType::kF8)
    launch_routed_product<__nv_bfloat16, true>(stream, args, act);
  else
    with_16_bit_type(act, [&](auto zero) { launch_routed_product<decltype(zero), false>(stream, args, act); });
  return kShownRouting;
}

}  // namespace lfm2
