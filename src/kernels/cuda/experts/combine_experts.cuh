// What combine_experts and combine_experts_norm share: the new residual of a token, an octet at a time.
#pragma once

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2 {

constexpr int kChoices = 4;  // choices whose rows a thread has in flight

// The new residual of a token from channel c on, an octet, rounded to type T.
template <class T, bool vector>
__device__ Packed<T> combined_experts(const CombineExpertsArgs& args, int64_t token, int64_t c) {
  const int64_t hidden = args.hidden, count = hidden - c;
  const auto* residual = static_cast<const T*>(args.residual) + token * hidden + c;
  const int32_t* rows = args.rows + token * args.top_k;
  const float* weights = args.weights + token * args.top_k;
  const Packed<T> old_bits = load_packed(residual, count, vector);
  Octet sum = {};
  for (int first = 0; first < args.top_k; first += kChoices) {
    Packed<T> y[kChoices];
    float weight[kChoices];
#pragma unroll
    for (int j = 0; j < kChoices; ++j)
      if (first + j < args.top_k) {
        weight[j] = weights[first + j];
        y[j] = load_packed(static_cast<const T*>(args.y) + rows[first + j] * hidden + c, count, vector);
      }
#pragma unroll
    for (int j = 0; j < kChoices; ++j)
      if (first + j < args.top_k) {
        const Octet x = unpack(y[j]);
#pragma unroll
        for (int i = 0; i < kOctet; ++i) sum.v[i] += weight[j] * x.v[i];
      }
  }
  const Octet old = unpack(old_bits);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum.v[i] += old.v[i];
  return pack<T>(sum);
}

// Whether every octet of the rows begins on 16 bytes.
inline bool octets_on_16_bytes(const CombineExpertsArgs& args) {
  return args.hidden % kOctet == 0 && on_16_bytes(args.y) && on_16_bytes(args.residual);
}

}  // namespace lfm2
