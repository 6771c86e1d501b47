// The tile of gemm_wgmma.cu: chosen for speed alone, it does not change any bit of the result.
#pragma once

#include "kernels/cuda/gemm/launch.h"

namespace lfm2 {

struct WgmmaTile {
  int columns;  // 256, 192 or 128; rows: 128
  int cluster;  // thread blocks: 1; 2 where columns are 256. SwiGLU: {256, 2} alone
};

WgmmaTile choose_wgmma_tile(const GemmArgs& args, int multiprocessors);

// As launch_gemm_wgmma, with this tile.
void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out, WgmmaTile tile);

}  // namespace lfm2
