// What every kernel that combines experts shares: a token's choices, the order of their sum, and for the row kernels
// the new residual of a token, an octet at a time.
#pragma once

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

constexpr int kChoices = 4;  // choices whose rows a thread has in flight

// The rows and weights of some of a token's choices.
struct Choices {
  int32_t rows[kChoices];
  float weights[kChoices];
};

// Those from choice `first` on.
__device__ inline Choices load_choices(const CombineExpertsArgs& args, int64_t token, int first) {
  Choices choices = {};
#pragma unroll
  for (int j = 0; j < kChoices; ++j)
    if (first + j < args.top_k) {
      choices.rows[j] = __ldcg(args.rows + token * args.top_k + first + j);
      choices.weights[j] = __ldcg(args.weights + token * args.top_k + first + j);
    }
  return choices;
}

// Waits for the previous kernel, and loads the first choices, before that where they have been there for long enough.
__device__ inline Choices first_choices(const CombineExpertsArgs& args, int64_t token) {
  Choices choices = {};
  if (args.routing_is_old) choices = load_choices(args, token, 0);
  wait_for_previous();
  if (!args.routing_is_old) choices = load_choices(args, token, 0);
  return choices;
}

// A channel's sum over a token's choices goes through them in order, from 0 on.
__device__ inline float add_choice(float sum, float weight, float y) { return fmaf(weight, y, sum); }

// A token's old residual and the rows of its first choices from channel c on, an octet of each.
template <class T>
struct ExpertOctets {
  Packed<T> residual, y[kChoices];
};

template <class T, bool vector>
__device__ void load_choice_octets(const CombineExpertsArgs& args, const Choices& choices, int first, int64_t c,
                                   Packed<T> (&y)[kChoices]) {
#pragma unroll
  for (int j = 0; j < kChoices; ++j)
    if (first + j < args.top_k)
      y[j] = load_packed(static_cast<const T*>(args.y) + choices.rows[j] * args.hidden + c, args.hidden - c, vector);
}
template <class T, bool vector>
__device__ ExpertOctets<T> load_experts(const CombineExpertsArgs& args, const Choices& first_ones, int64_t token,
                                        int64_t c) {
  ExpertOctets<T> octets;
  octets.residual =
      load_packed(static_cast<const T*>(args.residual) + token * args.hidden + c, args.hidden - c, vector);
  load_choice_octets<T, vector>(args, first_ones, 0, c, octets.y);
  return octets;
}

// The new residual of a token from channel c on, an octet, rounded to type T.
template <class T, bool vector>
__device__ Packed<T> combined(const CombineExpertsArgs& args, const Choices& first_ones, ExpertOctets<T>& octets,
                              int64_t token, int64_t c) {
  Octet sum = {};
  Choices choices = first_ones;
  for (int first = 0; first < args.top_k; first += kChoices) {
    if (first > 0) {
      choices = load_choices(args, token, first);
      load_choice_octets<T, vector>(args, choices, first, c, octets.y);
    }
#pragma unroll
    for (int j = 0; j < kChoices; ++j)
      if (first + j < args.top_k) {
        const Octet x = unpack(octets.y[j]);
#pragma unroll
        for (int i = 0; i < kOctet; ++i) sum.v[i] = add_choice(sum.v[i], choices.weights[j], x.v[i]);
      }
  }
  const Octet old = unpack(octets.residual);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] += old.v[i];
  return pack<T>(sum);
}
template <class T, bool vector>
__device__ Packed<T> combined_experts(const CombineExpertsArgs& args, const Choices& first_ones, int64_t token,
                                      int64_t c) {
  ExpertOctets<T> octets = load_experts<T, vector>(args, first_ones, token, c);
  return combined<T, vector>(args, first_ones, octets, token, c);
}

// Whether every octet of the rows begins on 16 bytes.
inline bool octets_on_16_bytes(const CombineExpertsArgs& args) {
  return args.hidden % kOctet == 0 && on_16_bytes(args.y) && on_16_bytes(args.residual);
}

}  // namespace lfm2
