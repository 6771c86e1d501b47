// The layout of a SwiGLU's two projections: one matrix whose rows alternate, kGateUpBlock gate rows, then the up rows
// of the same columns of the output, and so on. A product's sums for both then end in the same hands. It divides every
// ffn.
#pragma once

#include <cstdint>

namespace lfm2 {

inline constexpr int64_t kGateUpBlock = 8;

}  // namespace lfm2
