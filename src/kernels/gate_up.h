// The layout of a SwiGLU's two projections: one matrix whose rows alternate, kGateUpBlock gate rows, then the up rows
// of the same columns of the output, and so on. So the thread that has the sum of a gate column has that of its up
// column too. kGateUpBlock must divide the number of columns, so a device holds feed-forwards that are padded to whole
// blocks: the gate and up rows and the down projection's columns behind the model's own are zero, and add silu(0) 0 · 0
// to a sum: nothing.
#pragma once

#include <cstdint>

namespace lfm2 {

inline constexpr int64_t kGateUpBlock = 8;

// The columns that a device holds for a feed-forward of `ffn` columns. It also aligns the rows of the down projection
// to 16 bytes.
inline constexpr int64_t padded_ffn(int64_t ffn) { return (ffn + kGateUpBlock - 1) / kGateUpBlock * kGateUpBlock; }

}  // namespace lfm2
