// The launchers of the kernels in this folder for fp8 weights with a scale for each row. Each block rounds its few rows
// itself. launch.h has norm_route_swiglu's, which takes such weights, too. What they compute is defined in
// kernels/ops.h.
#pragma once

#include "kernels/cuda/fused/launch.h"

namespace lfm2 {

// Whether these kernels take the product's w and k.
bool takes_few_fp8_rows(const GemmArgs& product);

// A dense product of up to eight rows, fp8 or of bf16 that the kernel rounds: launch_gemm_fp8, with the same bits.
// prefers_few_fp8_rows(): whether it is faster and takes the product.
bool prefers_few_fp8_rows(const GemmArgs& product);
void launch_matmul_few_fp8_rows(cudaStream_t stream, const GemmArgs& args);

// launch_quantize, launch_gemm_fp8 and launch_combine_experts, with the same bits, for up to eight rows of bf16 and the
// limits of launch_matmul_combine_experts.
Visible launch_matmul_combine_experts_fp8(cudaStream_t stream, const MatmulCombineExpertsArgs& args);

// launch_rms_norm to fp8 rows, launch_gemm_fp8 and launch_cached_short_conv, with the same bits and the limits of
// launch_norm_project_short_conv.
void launch_norm_project_short_conv_fp8(cudaStream_t stream, const ProjectShortConvArgs& args,
                                        const FrontNormArgs& norm);

}  // namespace lfm2
