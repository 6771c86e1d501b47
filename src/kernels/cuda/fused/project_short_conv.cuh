// A skinny product followed by the gated short convolution, for sequences with one token each. The parts B, C and z of
// bcz are the sums of three warps of one block, so bcz is never written. gemm_skinny.cu explains how such a product is
// computed. For project_short_conv.cu, and, with rms_norm before it, for norm_project_short_conv.cu.
//
// The bits are those of gemm_skinny.cu and of short_conv.cuh, one after the other: the sums are rounded as the
// product's store rounds them, and the rest has the same operations in the same order.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/gemm/gemm_skinny_tiles.cuh"
#include "kernels/cuda/rows/short_conv_state.cuh"

namespace lfm2::projected_conv {

using namespace skinny;

constexpr int kParts = 3, kConvThreads = kParts * 32;          // B, C, z: the warps that multiply
constexpr int kKeptOf3 = 2, kMaxKept = kMaxConvolvedTaps - 1;  // entries of a state, of three taps and at most
constexpr int kChunk = 4;                                      // elements of a state that are copied at a time
static_assert(kConvThreads % kTile == 0, "a thread keeps its channel, whichever tokens it takes");

// A token, and the rows of the states to write after it. A sequence's only token has the sequence's number.
struct ConvToken {
  int position;
  int here;  // see conv::TokenCoord
  int rows_behind;
  int64_t behind[2];
};

// The number of entries of a state: `kept` with three taps, otherwise up to `kept`.
template <int kept>
__device__ int last_tap(const ShortConvArgs& conv) {
  return kept == kKeptOf3 ? kept : static_cast<int>(conv.taps) - 1;
}

// What the warps pass to each other for a unit, in shared memory, for up to `rows` tokens.
template <int rows, int kept>
struct alignas(16) Exchange {
  float past[rows][kept][kTile];       // the states before the tokens
  float bcz[kParts][kTile][rows + 2];  // padded so that writes and reads do not conflict in a bank
  ConvToken tokens[rows];
};

// The weights of a thread's channel.
template <int kept>
struct ConvWeights {
  float taps[kept + 1], bias;  // taps[i]: of the input i tokens back
  __device__ ConvWeights(const ShortConvArgs& conv, int64_t channel)
      : bias(conv.bias.data != nullptr ? load_one(conv.bias, channel) : 0.0f) {
    const int last = last_tap<kept>(conv);
#pragma unroll
    for (int back = 0; back <= kept; ++back)
      if (back <= last) taps[back] = load_one(conv.weight, channel * (last + 1) + last - back);
  }
};

__device__ inline void find_tokens(const ProjectShortConvArgs& args, ConvToken* tokens) {
  const int token = threadIdx.x;
  if (token >= args.conv.tokens) return;
  const conv::TokenCoord place{args.conv.positions[token], conv::rows_before(args.cache, token), token, true};
  ConvToken found{place.position, place.here, 0, {}};
  conv::for_each_row_behind(args.cache, place, [&](int64_t row) { found.behind[found.rows_behind++] = row; });
  tokens[token] = found;
}

// The states before the tokens, as this thread copies its share of them in the background.
template <int rows, int kept>
class PastCopies {
 public:
  __device__ PastCopies(const ProjectShortConvArgs& args, int64_t channel) {
    const int last = last_tap<kept>(args.conv);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int token = token_of(i), entry = entry_of(i);
      sources_[i] = nullptr;
      if (token < args.conv.tokens && entry < last && args.conv.positions[token] >= last - entry)
        sources_[i] = conv::state_at(args.conv, args.cache, conv::row_before(args.cache, token), entry,
                                     channel + chunk_of(i) * kChunk);
    }
  }
  __device__ void start(Exchange<rows, kept>& exchange) const {
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      if (sources_[i] != nullptr)
        copy_async(shared_address(&exchange.past[token_of(i)][entry_of(i)][chunk_of(i) * kChunk]), sources_[i], true);
    commit_copies();
  }

 private:
  static constexpr int kChunks = kTile / kChunk;
  static constexpr int kCopies = (rows * kept * kChunks + kConvThreads - 1) / kConvThreads;
  __device__ static int index(int i) { return static_cast<int>(threadIdx.x) + i * kConvThreads; }
  __device__ static int token_of(int i) { return index(i) / (kept * kChunks); }
  __device__ static int entry_of(int i) { return index(i) / kChunks % kept; }
  __device__ static int chunk_of(int i) { return index(i) % kChunks; }

  const float* sources_[kCopies];  // null: there is nothing to copy
};

// The product's bias in the two channels of its tile of which a lane has sums.
struct ProductBias {
  bool any;
  float values[2];
  __device__ ProductBias(const GemmArgs& product, int64_t channel) : any(product.bias.data != nullptr), values{} {
    const int64_t first = threadIdx.x / 32 * product.n + channel + threadIdx.x % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (any) values[half] = load_one(product.bias, first + half * 8);
  }
};

// Passes a part's sums, as bcz holds them, to the other warps. The lane has the sums that skinny::Output describes.
template <class T, int groups, int kept>
__device__ void share_sums(const ProductBias& bias, const float (&sums)[groups][4],
                           Exchange<groups * kRowGroup, kept>& exchange) {
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = lane / 4 + half * 8;
#pragma unroll
    for (int g = 0; g < groups; ++g)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float value = sums[g][half * 2 + i];
        if (bias.any) value += bias.values[half];
        exchange.bcz[part][own][g * kRowGroup + lane % 4 * 2 + i] = to_f32(rounded<T>(value));
      }
  }
}

template <class T, int rows, int kept>
__device__ void convolve(const ProjectShortConvArgs& args, int64_t channel, const ConvWeights<kept>& weights,
                         const Exchange<rows, kept>& exchange) {
  const int own = threadIdx.x % kTile, last = last_tap<kept>(args.conv);
  for (int token = threadIdx.x / kTile; token < args.conv.tokens; token += kConvThreads / kTile) {
    const ConvToken& place = exchange.tokens[token];
    const auto input = [&](int row) { return exchange.bcz[0][own][row] * exchange.bcz[2][own][row]; };
    float inputs[kept + 1] = {input(token)}, sum = weights.bias;  // inputs[i]: i tokens back
    // Inputs of the same text in the rows before, or of the state before them.
#pragma unroll
    for (int back = 1; back <= kept; ++back)
      if (back <= last)
        inputs[back] = place.here >= back ? input(token - back) : exchange.past[token][last + place.here - back][own];
#pragma unroll
    for (int back = kept; back >= 0; --back)
      if (back <= last && back <= place.position) sum = fmaf(weights.taps[back], inputs[back], sum);
    static_cast<T*>(args.conv.out)[token * args.conv.hidden + channel] = rounded<T>(sum * exchange.bcz[1][own][token]);
    for (int i = 0; i < place.rows_behind; ++i) {
      const auto state = [&](int entry) {
        return conv::state_at(args.conv, args.cache, place.behind[i], entry, channel);
      };
#pragma unroll
      for (int back = 0; back < kept; ++back)
        if (back < last && back <= place.position) *state(last - 1 - back) = inputs[back];
    }
  }
}

// For a product without a norm before it.
struct NoNorm {
  __device__ void start() const {}
  __device__ void finish() const {}
};

template <class T, int groups, int kept, class Norm>
__device__ void convolve_units(const ProjectShortConvArgs& args, const Layout& layout, const Block& block,
                               Exchange<groups * kRowGroup, kept> (&exchanges)[2], const Norm& norm) {
  constexpr bool kNorms = !std::is_same_v<Norm, NoNorm>;
  const int a_row = kNorms ? kept_row_of_lane(layout) : row_of_lane<groups>();
  bool normed = !kNorms;
  Turn turn;
  int side = 0;  // two units alternate, so that a warp may continue while others still read
  for (int64_t first = int64_t{blockIdx.x} * kTile; first < args.conv.hidden; first += int64_t{gridDim.x} * kTile) {
    Exchange<groups * kRowGroup, kept>& exchange = exchanges[side];
    const int64_t channel = first + threadIdx.x % kTile;
    // No kernel writes weights and index arrays. The states are copied while the sums are computed.
    const ConvWeights<kept> weights(args.conv, channel);
    const ProductBias product_bias(args.product, first);
    const PastCopies<groups * kRowGroup, kept> past(args, first);
    find_tokens(args, exchange.tokens);
    pdl_wait();
    if (!normed) norm.start();
    past.start(exchange);
    if (!normed) {
      wait_copies<1>();  // copies of the states may still be under way
      norm.finish();
      normed = true;
    }
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    float sums[groups][4] = {};
    UnitPieces<T, groups, kNorms>(layout, block, turn, a_row).multiply(sums);
    share_sums<T>(product_bias, sums, exchange);
    wait_copies<0>();
    named_barrier<kConvThreads>();  // of the warps that multiply
    convolve<T>(args, channel, weights, exchange);
    side ^= 1;
  }
}

// Calls f(std::integral_constant<int, kept>{}).
template <class F>
void with_kept(const ShortConvArgs& conv, F&& f) {
  if (conv.taps == 3) return f(std::integral_constant<int, kKeptOf3>{});
  f(std::integral_constant<int, kMaxKept>{});
}

// How the launches of both kernels divide the work: a unit is a tile of each part. The caller defines the rest of the
// layout.
struct Division {
  Layout layout;
  CUtensorMap w_map;
  int64_t blocks;
};
inline Division division_of(const ProjectShortConvArgs& args, Layout layout, DType act) {
  const int64_t hidden = args.conv.hidden;
  layout.box_tiles = 1;
  layout.unit_columns = kTile;
  layout.tile_distance = static_cast<int>(hidden);
  const GemmArgs& product = args.product;
  return {layout, pieces_map(product.w.data, act, 1, product.n, product.k, kTile, kDepth, layout.pieces),
          std::min<int64_t>(hidden / kTile, device_attribute(cudaDevAttrMultiProcessorCount))};
}

}  // namespace lfm2::projected_conv
