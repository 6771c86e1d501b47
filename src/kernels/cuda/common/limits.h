// The largest models that the GPU's kernels support: their shared arrays, tiles and grids have these sizes. The
// operators check them. src/stage/job/backend_choice.cpp refuses a larger model before its weights are read. This
// header includes nothing of CUDA.
#pragma once

#include <cstdint>

namespace lfm2 {

constexpr int kMaxHeadDim = 256;
constexpr int kMaxQueriesPerKey = 64;       // query heads of one key-value head
constexpr int kMaxGridRows = 65535;         // blocks in a grid's second dimension
constexpr int kMaxKeyHeads = kMaxGridRows;  // key-value heads: each has a row of blocks
constexpr int kConvBlockChannels = 256;     // channels in a block of the convolution
constexpr int64_t kMaxConvChannels = int64_t{kMaxGridRows} * kConvBlockChannels;
constexpr int kMaxExperts = 1024;

}  // namespace lfm2
