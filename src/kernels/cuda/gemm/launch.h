// The launchers of the kernels in this folder (common/launchers.h). What they compute is defined in kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/any_array.h"
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/gemm/gemm_plan.h"

namespace lfm2 {

// The factors of fp8 operands (kernels/tensor.h): one for each `group` elements of k, or, with `group` 0, for a whole
// row.
struct GemmScales {
  const float* a = nullptr;  // [groups of k, a_stride]; null if a is not fp8
  const float* w = nullptr;  // [groups, groups of k, n / w_rows]; null if w is not fp8
  int64_t a_stride = 0;
  int w_rows = 1;  // rows of w that share factors
  int group = 0;
};

// A product of every row of a with w, or, for every expert e, of the rows offsets[e] … offsets[e + 1] with w[e].
struct GemmArgs {
  const void* a;           // [m, k]
  AnyArray w;              // [groups, n, k]
  AnyArray bias;           // [n] or none
  void* out;               // [m, n]; [m, n / 2] after kSwiglu
  const int32_t* offsets;  // [groups + 1] on the device, or null: one group of m rows
  int64_t m, n, k;
  int64_t groups;
  Epilogue epilogue;
  Visible offsets_visible = Visible::kAfterWait;  // if there are offsets
  // SMs that persistent kernels (those of wgmma) leave free: Backend::reserve_sms.
  int reserved_sms = 0;
  GemmScales scales{};
};

// For a of 16 bits, w of the same type, out of this type or fp32. Any sizes and addresses; rows of octets on 16 bytes
// are faster.
void launch_gemm_mma(cudaStream_t stream, const GemmArgs& args, DType act, DType out);
// The same for sm_90a only. n and k must be multiples of 8 (kSwiglu: n of 16), and everything on 16 bytes.
void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out);
// For a and w of fp8 and out of bf16, on sm_90a only. The scales are those of single rows without groups, or of eight
// rows of w and groups of 128. n must be a multiple of 8 (kSwiglu: 16) and k of 16, everything on 16 bytes. The tensor
// cores sum each 128 of k, because their own sums of fp8 keep fewer bits, and these sums are added in fp32. Without
// args.scales.a, a is bf16 and the kernel rounds it (kFp8RoundingTile): not with kSwiglu.
void launch_gemm_fp8(cudaStream_t stream, const GemmArgs& args);
// The same as launch_gemm_wgmma, with the same bits, for products that prefers_skinny() selects.
void launch_gemm_skinny(cudaStream_t stream, const GemmArgs& args, DType act, DType out);
// For a and out of fp32, w of bf16 or fp32, on sm_90a only. n and k must be multiples of 8 (w fp32: k of 4), and
// everything on 16 bytes.
void launch_gemm_bf16x3_wgmma(cudaStream_t stream, const GemmArgs& args);
// For a and out of fp32, w of bf16. k must be a multiple of 8, and a and w on 16 bytes.
void launch_gemm_bf16x3(cudaStream_t stream, const GemmArgs& args);
// For a and out of fp32, w of any type; or for a and w of fp8 with any scales, out of any type. Any sizes and
// addresses.
void launch_gemm_simt(cudaStream_t stream, const GemmArgs& args, DType out);

}  // namespace lfm2
