// norm_route: one kernel computes the norm before the router, the gate's product, and the choice of experts; for few
// tokens it also sorts the normed rows by expert.
#include <algorithm>
#include <bit>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/limits.h"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/experts/group_blocks.cuh"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/experts/norm_route_warp.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

using namespace gate_product;

// When the gate's rows are loaded. kAhead: all of them before the wait for the previous kernel, into registers. kKept:
// the same, and the block processes many tiles of tokens. kInTurn: when they are multiplied.
enum class GateLoads { kAhead, kKept, kInTurn };
template <GateLoads loads>
constexpr int kFitting = loads == GateLoads::kInTurn ? 2 : 1;  // blocks that fit on an SM

// The order of operations for a token depends on `hidden` alone.
// - operands: x, normed [tokens, hidden] of type T (they may be the same), norm_weight [hidden] of any type, gate
//   [experts, hidden] of type Gate, bias [experts] fp32 or null; out ids, weights [tokens, top_k]. With an exchange, up
//   to kMaxGrouped assignments and experts: also sources, rows, offsets, and sorted [tokens top_k, hidden] of type T.
//   If args.rounded has elements, the normed and sorted rows are written in fp8 only.
// - block: a tile of 8 tokens, with kKept every gridDim.x-th one, and all experts, up to kExpertTiles tiles of 16. Each
//   of its warps, up to kWarps, has kSliceK elements of every token and of every row of the gate, then whole tokens for
//   the choice.
// - thread: NormRouteWarp defines which elements.
// - alignment: x, normed, gate, norm_weight and sorted on 16 bytes, hidden a multiple of kChunkK.
template <class T, class Gate, int kExpertTiles, GateLoads loads>
__global__ void __launch_bounds__(kWarps * 32, kFitting<loads>)
    norm_route_kernel(NormRouteArgs args, Exchange exchange) {
  using Warp = NormRouteWarp<T, Gate, kExpertTiles>;
  __shared__ float trees[kTileTokens][kWarps];
  __shared__ float sums[kWarps][kTileTokens][Warp::kExperts + 4];  // + 4: a warp's stores fall into different banks
  __shared__ __align__(16) float scales[kWarps * kSliceK];
  __shared__ float bias[Warp::kExperts];
  __shared__ float maxima[kTileTokens][kWarps];
  __shared__ GroupMemory memory;
  const bool rounds = args.rounded.elements != nullptr;
  const bool grouped = exchange != Exchange::kNone;  // only if Warp::kGroups, and not with kKept
  const GroupBlocks group(args, exchange, memory);
  pdl_trigger();
  if constexpr (Warp::kGroups) group.start();
  Warp warp{args};
  warp.load_scales(scales);
  if (args.bias != nullptr)
    for (int e = threadIdx.x; e < args.experts; e += blockDim.x) bias[e] = args.bias[e];
  typename Warp::GateChunk gate[loads != GateLoads::kInTurn ? kChunks : 1];
  if constexpr (loads != GateLoads::kInTurn) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) gate[c] = warp.load_gate(c);
  }
  pdl_wait();
  warp.load_tokens(warp.first_token, warp.x);
  if constexpr (Warp::kGroups) group.load_tag();
  while (true) {
    const int64_t next = warp.first_token + static_cast<int64_t>(gridDim.x) * kTileTokens;
    typename Warp::Elements coming;
    if constexpr (loads == GateLoads::kKept) warp.load_tokens(next, coming);
    warp.sum_squares(trees);
    __syncthreads();
    warp.norm_tokens(trees, scales, !rounds);
    if (rounds) warp.find_largest(maxima);
    typename Warp::Sums total = {};
    warp.multiply_gate(
        [&](int c) {
          if constexpr (loads != GateLoads::kInTurn) return gate[c];
          return warp.load_gate(c);
        },
        total);
    warp.store_sums(total, sums[warp.warp]);
    __syncthreads();
    const int64_t first_choice = warp.first_token * args.top_k;
    warp.choose(sums, args.bias != nullptr ? bias : nullptr, grouped ? memory.ids : args.ids + first_choice,
                grouped ? memory.weights : args.weights + first_choice);
    if (rounds && !grouped) warp.store_fp8(args.rounded, maxima, 1, [&](int) { return warp.first_token + warp.g; });
    if (loads != GateLoads::kKept || next >= args.tokens) break;
    warp.first_token = next;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) warp.x[c] = coming[c];
  }
  if (!Warp::kGroups || !grouped) return;
  __syncthreads();
  const int64_t tokens = max(min(args.tokens - warp.first_token, int64_t{kTileTokens}), int64_t{0});
  const int row_of_lane =
      group.sorted_row(static_cast<int>(warp.first_token) * args.top_k, static_cast<int>(tokens) * args.top_k);
  if (rounds)
    warp.store_fp8(args.rounded_sorted, maxima, args.top_k,
                   [&](int choice) { return warp.sorted_row_of(row_of_lane, choice); });
  else
    warp.store_sorted(row_of_lane);
}

// The tokens and the threads of a block of norm_route_any_kernel.
constexpr int kAnyTokens = 4, kAnyThreads = 256;
// For any types and sizes. An earlier launch of rms_norm computes the norm.
// - operands: normed [tokens, hidden] of type T, gate [experts, hidden] of any type, bias [experts] fp32 or null; out
//   ids, weights [tokens, top_k].
// - block: kAnyTokens tokens and all experts: each warp has every (kAnyThreads / 32)-th expert for all of them, then
//   one token's choice.
// - thread: octets of the rows, 32 apart.
// - alignment: `vector`: hidden in octets, normed and gate on 16 bytes; otherwise any.
template <class T>
__global__ void __launch_bounds__(kAnyThreads) norm_route_any_kernel(NormRouteArgs args, bool vector) {
  extern __shared__ float shared[];  // [tokens, experts] logits, then scores
  pdl_trigger();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, experts = args.experts;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kAnyTokens, hidden = args.hidden;
  pdl_wait();
  for (int e = warp; e < experts; e += kAnyThreads / 32) {
    float sums[kAnyTokens] = {};
    for (int64_t k = lane * kOctet; k < hidden; k += 32 * kOctet) {
      const Octet gate = load_octet(args.gate, e * hidden + k, hidden - k, vector);
#pragma unroll
      for (int t = 0; t < kAnyTokens; ++t) {
        if (first_token + t >= args.tokens) break;
        const Octet x =
            load_octet(static_cast<const T*>(args.normed) + (first_token + t) * hidden + k, hidden - k, vector);
#pragma unroll
        for (int i = 0; i < kOctet; ++i) sums[t] = fmaf(x.v[i], gate.v[i], sums[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < kAnyTokens; ++t) {
      const float logit = warp_sum(sums[t]);
      if (lane == 0) shared[t * experts + e] = logit;
    }
  }
  __syncthreads();
  if (warp >= kAnyTokens || first_token + warp >= args.tokens) return;
  choose_experts(shared + warp * experts, shared + (kAnyTokens + warp) * experts, rule_of(args, args.bias),
                 args.ids + (first_token + warp) * args.top_k, args.weights + (first_token + warp) * args.top_k);
}

// How the blocks of a launch, one for each tile of tokens, learn each other's counts. An SM has room for `fitting` of
// them. Sends and receives may each occupy all reserved SMs while they wait for other ranks. If none are reserved,
// there are at most sends, and a rank that only sends waits for no rank that waits for it.
Exchange exchange_between(const NormRouteArgs& args, int fitting) {
  const int64_t blocks = ceil_divide(args.tokens, kTileTokens);
  if (std::min<int64_t>(args.tokens, kTileTokens) * args.top_k > kMaxGrouped || args.experts > kMaxGrouped)
    return Exchange::kNone;
  if (blocks == 1) return Exchange::kAlone;
  if (blocks <= kMaxParts && has_clusters()) return Exchange::kCluster;
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount) - 2 * args.reserved_sms;
  return blocks <= std::min(kMaxRouteBlocks, fitting * multiprocessors) ? Exchange::kGrid : Exchange::kNone;
}

// Returns whether the kernel groups the assignments.
template <class T, class Gate, int kExpertTiles, GateLoads loads>
bool launch_tiles(cudaStream_t stream, const NormRouteArgs& args, Exchange exchange) {
  auto blocks = static_cast<unsigned>(ceil_divide(args.tokens, kTileTokens));
  if (exchange == Exchange::kCluster) blocks = std::bit_ceil(blocks);
  if (loads == GateLoads::kKept)
    blocks =
        std::min(blocks, static_cast<unsigned>(device_attribute(cudaDevAttrMultiProcessorCount) - args.reserved_sms));
  launch_dependent("norm_route_kernel", norm_route_kernel<T, Gate, kExpertTiles, loads>,
                   {blocks, static_cast<unsigned>(ceil_divide(args.hidden, kSliceK)) * 32, 0,
                    exchange == Exchange::kCluster ? blocks : 1},
                   stream, args, exchange);
  return exchange != Exchange::kNone;
}

template <class T, class Gate>
bool launch_tiles(cudaStream_t stream, const NormRouteArgs& args) {
  const Exchange crowded = exchange_between(args, kFitting<GateLoads::kInTurn>);
  if (args.experts > 2 * kTileExperts) return launch_tiles<T, Gate, 4, GateLoads::kInTurn>(stream, args, crowded);
  if constexpr (sizeof(T) == 2) {
    const Exchange exchange = exchange_between(args, kFitting<GateLoads::kAhead>);
    if (exchange != Exchange::kNone) return launch_tiles<T, Gate, 2, GateLoads::kAhead>(stream, args, exchange);
    if (crowded == Exchange::kNone) return launch_tiles<T, Gate, 2, GateLoads::kKept>(stream, args, exchange);
  }
  return launch_tiles<T, Gate, 2, GateLoads::kInTurn>(stream, args, crowded);
}

bool takes_tiles(const NormRouteArgs& args) {
  return args.experts <= 4 * kTileExperts && args.top_k <= kMaxChoices && args.hidden > 0 &&
         args.hidden <= kWarps * kSliceK && args.hidden % kChunkK == 0 && on_16_bytes(args.x) &&
         on_16_bytes(args.gate.data) && on_16_bytes(args.normed) && on_16_bytes(args.norm_weight.data) &&
         on_16_bytes(args.sorted);
}

}  // namespace

bool routes_in_one_block(const NormRouteArgs& args, DType act) {
  return args.tokens > 0 && takes_tiles(args) && act != DType::kF32 && args.gate.dtype == act &&
         exchange_between(args, kFitting<GateLoads::kAhead>) == Exchange::kAlone;
}

NormRouteResult launch_norm_route(cudaStream_t stream, const NormRouteArgs& args, DType act) {
  const bool tiles = takes_tiles(args);
  const auto routed = [](bool grouped, bool rounds = true) {
    return NormRouteResult{grouped, rounds, Visible::kAfterWait};
  };
  if (args.tokens == 0) return routed(false);
  if (tiles && act == DType::kBf16 && args.gate.dtype == act)
    return routed(launch_tiles<__nv_bfloat16, __nv_bfloat16>(stream, args));
  if (tiles && act == DType::kF16 && args.gate.dtype == act) return routed(launch_tiles<__half, __half>(stream, args));
  if (tiles && act == DType::kF32 && args.gate.dtype == DType::kBf16)
    return routed(launch_tiles<float, __nv_bfloat16>(stream, args));

  launch_rms_norm(stream, args.x, args.norm_weight, args.eps, args.tokens, args.hidden, args.normed, act);
  const bool vector = args.hidden % kOctet == 0 && on_16_bytes(args.normed) && on_16_bytes(args.gate.data);
  static_assert(2 * kAnyTokens * kMaxExperts * sizeof(float) <= kSharedBytesUnasked);
  const int shared_bytes = 2 * kAnyTokens * args.experts * static_cast<int>(sizeof(float));
  with_device_type(act, [&](auto zero) {
    launch_dependent("norm_route_any_kernel", norm_route_any_kernel<decltype(zero)>,
                     {ceil_divide(args.tokens, kAnyTokens), kAnyThreads, shared_bytes}, stream, args, vector);
  });
  return routed(false, false);
}

}  // namespace lfm2
