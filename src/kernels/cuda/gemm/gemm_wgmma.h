// The tile of gemm_wgmma.cu. It is chosen for speed alone, because it does not change any bit of the result.
#pragma once

#include "kernels/cuda/gemm/launch.h"

namespace lfm2 {

struct WgmmaTile {
  int columns;  // 256, 192 or 128; a tile has 128 rows
  int cluster;  // number of thread blocks: 1, or 2 with 256 columns; SwiGLU takes {256, 2} only
};

WgmmaTile choose_wgmma_tile(const GemmArgs& args, int multiprocessors);

// The same as launch_gemm_wgmma, with this tile.
void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out, WgmmaTile tile);

}  // namespace lfm2
