// Cosines and sines of the rotary embedding, computed once for each position. Used by CpuAttention::qk_norm_rope.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace lfm2 {

// Frequencies and angles are rounded to fp32 in the same places as in transformers, because at large positions these
// roundings change the result.
class RopeTable {
 public:
  RopeTable(const Rope& rope, int64_t head_dim);
  bool is_of(const Rope& rope, int64_t head_dim) const { return rope == rope_ && head_dim / 2 == half_; }
  // Makes the positions [0, positions) available, and computes only those that are missing.
  void extend(int64_t positions);

  const float* cosines(int64_t position) const { return cosines_.data() + position * half_; }  // [head_dim / 2]
  const float* sines(int64_t position) const { return sines_.data() + position * half_; }      // [head_dim / 2]

 private:
  Rope rope_;
  int64_t half_, positions_ = 0;
  std::vector<float> inverse_frequencies_;  // [head_dim / 2]; 0 of pairs that do not turn
  std::vector<float> cosines_, sines_;      // [positions, head_dim / 2]
};

}  // namespace lfm2
