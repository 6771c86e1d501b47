// The largest models that the GPU's kernels take: their shared arrays, tiles and grids have these sizes. The operators
// check them; src/stage/job/backend_choice.cpp refuses a model that goes beyond them before its weights are read. This
// header needs nothing of CUDA.
#pragma once

#include <cstdint>

namespace lfm2 {

constexpr int kMaxHeadDim = 256;
constexpr int kMaxQueriesPerKey = 64;       // query heads of one key-value head
constexpr int kMaxGridRows = 65535;         // blocks in a grid's second dimension
constexpr int kMaxKeyHeads = kMaxGridRows;  // key-value heads: each takes a row of blocks
constexpr int kConvBlockChannels = 256;     // channels that a block of the convolution takes
constexpr int64_t kMaxConvChannels = int64_t{kMaxGridRows} * kConvBlockChannels;
constexpr int kMaxExperts = 1024;

}  // namespace lfm2
