// norm_route: one kernel computes the norm before the router, the gate's product, and the choice of experts; for few
// tokens it also sorts the normed rows by expert.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/limits.h"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/experts/gate_product.cuh"
#include "kernels/cuda/experts/group_blocks.cuh"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/rows/fp8_rows.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

using namespace gate_product;

constexpr int kWarps = kSlices;  // the most of a block: each takes one slice

// When the gate's rows are loaded: kAhead, all of them before the wait for the kernel in front, and kept in registers;
// kKept, the same, and the block goes through many tiles of tokens; or when they are multiplied.
enum class GateLoads { kAhead, kKept, kInTurn };
template <GateLoads loads>
constexpr int kFitting = loads == GateLoads::kInTurn ? 2 : 1;  // blocks that a multiprocessor has room for

template <class T, class Gate, int kExpertTiles>
struct NormRouteWarp;

// The order of operations for a token depends on `hidden` alone.
// - operands: x, normed [tokens, hidden] of type T (they may be the same), norm_weight [hidden] of any type, gate
//   [experts, hidden] of type Gate, bias [experts] fp32 or null; out ids, weights [tokens, top_k]. With an exchange, up
//   to kMaxGrouped assignments and as many experts: also sources, rows, offsets, and sorted [tokens top_k, hidden] of
//   type T. Where args.rounded has elements, the normed and sorted rows are written in fp8 only.
// - block: a tile of 8 tokens, with kKept every gridDim.x-th one, and all experts, up to kExpertTiles tiles of 16; each
//   of its warps, up to kWarps, takes kSliceK elements of every token and of every row of the gate, then whole tokens
//   for the choice.
// - thread: NormRouteWarp says which elements.
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
  const bool grouped = exchange != Exchange::kNone;  // only where Warp::kGroups, and not with kKept
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

// The number of values of the gate's type whose sum is exactly x: one where the types are the same, three bf16 for an
// fp32. The three are cut off and not rounded, so that nothing overflows.
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

// One warp's part of norm_route_kernel: a slice of the rows, of which its lanes have what gate_product.cuh says.
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

  // x = the normed tokens, which are written to args.normed as well where `stores` says so.
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

  // Rounds the normed tokens to fp8, and writes each to `copies` rows, which row_of(copy) gives to the lanes of its
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

  // total = the gate's rows times the tokens, over the warp's elements. gate_of(c) is load_gate(c), or what that gave
  // before.
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

  // The warp takes every warps-th token: adds the warps' sums up in their order, and chooses the token's experts. The
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

  // The sorted row of a choice of the lane's token, of which lane l has that of assignment l.
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

// The tokens and the threads of a block of norm_route_any_kernel.
constexpr int kAnyTokens = 4, kAnyThreads = 256;
// For any types and sizes. A launch of rms_norm before it computes the norm.
// - operands: normed [tokens, hidden] of type T, gate [experts, hidden] of any type, bias [experts] fp32 or null;
//   out ids, weights [tokens, top_k].
// - block: kAnyTokens tokens and all experts: each warp takes every (kAnyThreads / 32)-th expert for all of them,
//   then one token's choice.
// - thread: octets of the rows, 32 apart.
// - alignment: `vector`: hidden in octets, normed and gate on 16 bytes; otherwise any.
template <class T>
__global__ void __launch_bounds__(kAnyThreads) norm_route_any_kernel(NormRouteArgs args, bool vector) {
  extern __shared__ float shared[];  // [tokens, experts] logits, then as many scores
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

// Multiprocessors that may be taken by kernels which wait for other ranks: those of NCCL take up to eight.
constexpr int kWaitingMultiprocessors = 16;

// How the blocks of a launch, one for each tile of tokens, learn each other's counts. A multiprocessor has room for
// `fitting` of them.
Exchange exchange_between(const NormRouteArgs& args, int fitting) {
  const int64_t blocks = ceil_divide(args.tokens, kTileTokens);
  if (std::min<int64_t>(args.tokens, kTileTokens) * args.top_k > kMaxGrouped || args.experts > kMaxGrouped)
    return Exchange::kNone;
  if (blocks == 1) return Exchange::kAlone;
  if (blocks <= kMaxParts && has_clusters()) return Exchange::kCluster;
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount) - kWaitingMultiprocessors;
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
