// How far the sums of two products may be apart.
#pragma once

#include <cmath>

#include "kernels/dtype.h"

namespace lfm2::test {

// What two summations of k products may differ by, in units of fp32 rounding of the sum of their absolute values.
// Tensor cores cut off instead of rounding, so every step of 16 may lose a unit in the same direction. A chain of fused
// multiply-adds rounds at each of k steps in either direction; four standard deviations are allowed.
inline double summation_units(DType act, int64_t k) {
  const auto steps = static_cast<double>(k);
  return (act == DType::kF32 ? 4 * std::sqrt(steps) : 2 * steps / 16) + 16;
}

}  // namespace lfm2::test
