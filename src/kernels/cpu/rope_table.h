// Cosines and sines of the rotary embedding, computed once for each position. Used by CpuOps::qk_norm_rope.
#pragma once

#include <cstdint>
#include <vector>

namespace lfm2 {

// Frequencies and angles are rounded to fp32 in the same places as in transformers, because at large positions these
// roundings change the result.
class RopeTable {
 public:
  // Makes the positions [0, positions) available, and computes only those that are missing.
  void extend(float theta, int64_t head_dim, int64_t positions);

  const float* cosines(int64_t position) const { return cosines_.data() + position * half_; }  // [head_dim / 2]
  const float* sines(int64_t position) const { return sines_.data() + position * half_; }      // [head_dim / 2]

 private:
  float theta_ = 0;
  int64_t half_ = 0, positions_ = 0;
  std::vector<float> inverse_frequencies_;  // [head_dim / 2]
  std::vector<float> cosines_, sines_;      // [positions, head_dim / 2]
};

}  // namespace lfm2
