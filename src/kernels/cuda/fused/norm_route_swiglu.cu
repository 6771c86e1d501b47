// norm_route_swiglu: the norm before the router, the choice of experts, and their gate-and-up product, for few tokens
// in one kernel. Every block norms and routes all tokens itself, so that it waits for no other cluster, and multiplies
// its units of the product with the normed rows that it keeps. gemm_skinny.cu explains how such a product is computed.
//
// The two blocks of a cluster share the product with the router's gate. So each can load its half of the gate into
// registers before the wait: no kernel writes the gate.
//
// The bits are those of norm_route_kernel and gemm_skinny.cu, one after the other.
#include <algorithm>

#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/experts/gate_product.cuh"
#include "kernels/cuda/experts/group_blocks.cuh"
#include "kernels/cuda/fused/front_norm.cuh"
#include "kernels/cuda/fused/launch.h"
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

// - operands: x [tokens, hidden] of type T, norm_weight [hidden] and gate [experts, hidden] of the same, bias [experts]
//   fp32 or null; w [experts, n, hidden] of type T; out the routing, and out [tokens top_k, n / 2] of type T. product.a
//   is x, product.offsets is not read.
// - block: norms and routes all tokens, up to kMaxRoutedTokens, with the other block of its cluster (GateTile); then it
//   processes units as gemm_skinny_kernel does.
// - thread: see FrontNorm, GateTile and choose; then as in gemm_skinny_kernel.
// - alignment: hidden a multiple of kChunkK, n in sixteens, everything on 16 bytes.
template <class T>
__global__ void __launch_bounds__(kNormThreads, 2)
    norm_route_swiglu_kernel(const __grid_constant__ CUtensorMap w_map,
                             const __grid_constant__ NormRouteSwigluArgs args, const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ RoutingMemory memory;
  const auto& [product, route] = args;
  if constexpr (kShownRouting == Visible::kAfterWait) pdl_trigger();
  start_cluster(route, memory);
  const Block block = start_block(shared, &w_map, &w_map, layout, product.k);
  const FrontNorm<T> norm(product, {route.norm_weight, route.eps}, layout, block);
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
  choose(route, block.buffers, memory);
  fence_proxy_async();  // the copy engine writes where the sums were
  __syncthreads();
  // Every warp sorts the assignments itself, and its lane l handles expert l.
  const int warp = threadIdx.x / 32, expert = expert_of_lane(route, memory);
  const Ballots<5> ballots(expert);
  const int count = __popc(ballots.lanes(static_cast<int>(threadIdx.x % 32)));
  const SortedLane sorted(expert, ballots, count, 0);
  if (warp == 0) store_routing(route, sorted, memory.weights);
  if (warp == layout.tiles) {
    const auto scheduler = [&] {
      return UnitScheduler(product, kRowGroup, layout.unit_columns, sorted.end - count, sorted.end);
    };
    load_buffers(product, &w_map, &w_map, layout, block, scheduler, [] {});
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

template <class T>
void launch_routed_product(cudaStream_t stream, NormRouteSwigluArgs args, DType act) {
  GemmArgs& product = args.product;
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  constexpr int kUsed = kNormBytes + static_cast<int>(sizeof(RoutingMemory));
  const Share share = share_of(Kernel::kRoutedProduct, args.route.tokens).without(kUsed);
  // The sums fit into the tile buffers, which take at least half of what the kept rows leave.
  static_assert((share_of(Kernel::kRoutedProduct, kMaxRoutedTokens).bytes - kUsed -
                 kMaxRoutedTokens * kMaxFrontNormedK * static_cast<int>(sizeof(T))) /
                    2 >=
                static_cast<int>(sizeof(SliceSums)));
  const Layout layout =
      layout_with_kept(choose_tiles(product, multiprocessors, kRoutedTiles), args.route.tokens, product.k, share);
  const CUtensorMap w_map = pieces_map(product.w.data, act, product.groups, product.n, product.k,
                                       layout.box_tiles * kTile, kDepth, layout.pieces);
  const int64_t units =
      row_tile_bound(product.m, product.groups, kRowGroup) * ceil_divide(product.n, layout.tiles * kTile);
  const int64_t blocks = ceil_divide(std::min<int64_t>(units, multiprocessors), kCluster) * kCluster;
  product.offsets_visible = Visible::kBeforeWait;  // every block computes them itself
  constexpr auto kernel = norm_route_swiglu_kernel<T>;
  allow_shared_bytes<kernel, max_bytes(Kernel::kRoutedProduct) - kUsed>();
  launch_dependent("norm_route_swiglu_kernel", kernel, {blocks, kNormThreads, share.bytes, kCluster}, stream, w_map,
                   args, layout);
}

}  // namespace

Visible launch_norm_route_swiglu(cudaStream_t stream, const NormRouteSwigluArgs& args, DType act) {
  static_assert(kMaxRoutedTokens <= kTileTokens && kTileTokens == kRowGroup && kSlices * kSliceK <= kMaxFrontNormedK);
  with_16_bit_type(act, [&](auto zero) { launch_routed_product<decltype(zero)>(stream, args, act); });
  return kShownRouting;
}

}  // namespace lfm2
