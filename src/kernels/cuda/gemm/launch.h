// The launchers of the kernels in this folder: each takes raw device pointers and sizes that Products has checked,
// enqueues on `stream` and returns; none allocates or waits, so that steps can be recorded as graphs. Mathematics:
// kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/any_array.h"
#include "kernels/cuda/gemm/gemm_plan.h"

namespace lfm2 {

// A product of every row, or of expert e's rows offsets[e] … offsets[e + 1] with w[e].
struct GemmArgs {
  const void* a;           // [m, k]
  AnyArray w;              // [groups, n, k]
  AnyArray bias;           // [n] or none
  void* out;               // [m, n]; [m, n / 2] after kSwiglu
  const int32_t* offsets;  // [groups + 1] on the device, or null: one group of m rows
  int64_t m, n, k;
  int64_t groups;
  Epilogue epilogue;
};

// a 16 bits, w as a, out as a or fp32. Any sizes and addresses; aligned ones (16 bytes, octets) are faster.
void launch_gemm_mma(cudaStream_t stream, const GemmArgs& args, DType act, DType out);
// The same for sm_90a alone; n and k in octets (kSwiglu: n in sixteens), everything on 16 bytes.
void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out);
// As launch_gemm_wgmma, with its bits, for prefers_few_rows().
void launch_gemm_few_rows(cudaStream_t stream, const GemmArgs& args, DType act, DType out);
// a and out fp32, w bf16 or fp32; sm_90a alone; n in octets, k in octets (w fp32: in fours), everything on 16 bytes.
void launch_gemm_planes_wgmma(cudaStream_t stream, const GemmArgs& args);
// a and out fp32, w bf16; k in octets, a and w on 16 bytes.
void launch_gemm_planes(cudaStream_t stream, const GemmArgs& args);
// a and out fp32, w of any type; any sizes and addresses.
void launch_gemm_simt(cudaStream_t stream, const GemmArgs& args);

}  // namespace lfm2
