// The tile of gemm_wgmma.cu: chosen for speed alone, it does not change any bit of the result.
#pragma once

#include "kernels/cuda/launch.h"

namespace lfm2 {

struct WgmmaTile {
  int columns;  // 256, 192 (not for SwiGLU) or 128; rows: 128
};

// As launch_gemm_wgmma, with this tile.
void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out, WgmmaTile tile);

}  // namespace lfm2
