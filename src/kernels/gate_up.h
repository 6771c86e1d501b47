// The layout of the two input projections of a SwiGLU: one matrix in which kGateUpBlock gate rows alternate with the up
// rows of the same output columns. So one thread gets both sums of an output element.
//   rows of w:  gate 0 … 7 | up 0 … 7 | gate 8 … 15 | up 8 … 15 | ...
// A device holds feed-forwards padded to whole blocks. The additional gate rows, up rows and columns of the down
// projection are zero, so that they add silu(0) · 0 · 0 = 0 to a sum.
#pragma once

#include <cstdint>

namespace lfm2 {

inline constexpr int64_t kGateUpBlock = 8;

// The dimension that a device holds for a feed-forward of `ffn`. The padding also aligns the rows of the down
// projection to 16 bytes.
inline constexpr int64_t padded_ffn(int64_t ffn) { return (ffn + kGateUpBlock - 1) / kGateUpBlock * kGateUpBlock; }

}  // namespace lfm2
