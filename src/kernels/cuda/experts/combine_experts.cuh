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

// The rows and weights from choice `first` on.
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

// Waits for the previous kernel, and loads the first choices: before the wait if the routing is visible by then.
__device__ inline Choices first_choices(const CombineExpertsArgs& args, int64_t token) {
  Choices choices = {};
  const bool visible = args.routing_visible == Visible::kBeforeWait;
  if (visible) choices = load_choices(args, token, 0);
  pdl_wait();
  if (!visible) choices = load_choices(args, token, 0);
  return choices;
}

// A channel's sum over a token's choices goes through them in order, from 0 on.
__device__ inline float add_choice(float sum, float weight, float y) { return fmaf(weight, y, sum); }

// The rows of `choices`, which begin with choice `first`, from channel c on, an octet of each.
template <class T, bool vector>
__device__ void load_chosen(const CombineExpertsArgs& args, const Choices& choices, int first, int64_t c,
                            Packed<T> (&y)[kChoices]) {
#pragma unroll
  for (int j = 0; j < kChoices; ++j)
    if (first + j < args.top_k)
      y[j] = load_packed(static_cast<const T*>(args.y) + choices.rows[j] * args.hidden + c, args.hidden - c, vector);
}
// Adds them to the sum over the earlier choices.
template <class T>
__device__ void add_chosen(const CombineExpertsArgs& args, const Choices& choices, int first,
                           const Packed<T> (&y)[kChoices], Octet& sum) {
#pragma unroll
  for (int j = 0; j < kChoices; ++j)
    if (first + j < args.top_k) {
      const Octet x = unpack(y[j]);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) sum.v[i] = add_choice(sum.v[i], choices.weights[j], x.v[i]);
    }
}
// The old residual and the sum over all choices, rounded to type T.
template <class T>
__device__ Packed<T> new_residual(const Packed<T>& old_bits, Octet sum) {
  const Octet old = unpack(old_bits);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] += old.v[i];
  return pack<T>(sum);
}

// The new residual of a token from channel c on, an octet, rounded to type T.
template <class T, bool vector>
__device__ Packed<T> combined_experts(const CombineExpertsArgs& args, const Choices& first_ones, int64_t token,
                                      int64_t c) {
  const auto* residual = static_cast<const T*>(args.residual) + token * args.hidden + c;
  const Packed<T> old_bits = load_packed(residual, args.hidden - c, vector);
  Octet sum = {};
  Choices choices = first_ones;
  for (int first = 0; first < args.top_k; first += kChoices) {
    if (first > 0) choices = load_choices(args, token, first);
    Packed<T> y[kChoices];
    load_chosen<T, vector>(args, choices, first, c, y);
    add_chosen(args, choices, first, y, sum);
  }
  return new_residual(old_bits, sum);
}

// Whether every octet of the rows begins on 16 bytes.
inline bool octets_on_16_bytes(const CombineExpertsArgs& args) {
  return args.hidden % kOctet == 0 && on_16_bytes(args.y) && on_16_bytes(args.residual);
}

}  // namespace lfm2
