// The launchers of the kernels in this folder (common/launchers.h). Each fuses a product with operators before or after
// it. What they compute is defined in kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

// rms_norm of a product's rows, before the product.
struct FrontNormArgs {
  AnyArray weight;  // [k], of the type of a, on 16 bytes
  float eps;
};
constexpr int64_t kMaxFrontNormedRows = 8, kMaxFrontNormedK = 2048;
// launch_rms_norm, then launch_gemm_skinny of the normed rows to their own type, with the same bits; the normed rows
// are not written. For a dense product without an addition.
void launch_norm_matmul(cudaStream_t stream, const GemmArgs& product, const FrontNormArgs& norm, DType act);

struct ProjectShortConvArgs {
  GemmArgs product;  // to bcz, which is not written
  ShortConvArgs conv;
  CachedConvArgs cache;
};
constexpr int64_t kMaxConvolvedRows = 16;
constexpr int kMaxConvolvedTaps = 8;
// launch_gemm_skinny, to its own type, then launch_cached_short_conv, with the same bits. For sequences with one token
// each, rows of draft blocks among them, at most kMaxConvolvedRows; up to kMaxConvolvedTaps taps, hidden in sixteens,
// the states on 16 bytes.
void launch_project_short_conv(cudaStream_t stream, const ProjectShortConvArgs& args, DType act);
// launch_rms_norm of the product's rows, then launch_project_short_conv, with the same bits.
void launch_norm_project_short_conv(cudaStream_t stream, const ProjectShortConvArgs& args, const FrontNormArgs& norm,
                                    DType act);

struct MatmulCombineExpertsArgs {
  GemmArgs product;            // to y, which is not written
  CombineExpertsArgs combine;  // its routing is visible when the product's offsets are
};
// launch_gemm_skinny of groups, to its own type, then launch_combine_experts, with the same bits, within these limits.
constexpr int64_t kMaxCombinedTokens = 8, kMaxCombinedChoices = 4, kMaxCombinedExperts = 32;
Visible launch_matmul_combine_experts(cudaStream_t stream, const MatmulCombineExpertsArgs& args, DType act);

struct NormRouteSwigluArgs {
  GemmArgs product;     // of the rows that are sorted, [tokens top_k, hidden]; its a is x, and its offsets are not read
  NormRouteArgs route;  // its normed and sorted are not written
};
constexpr int64_t kMaxRoutedTokens = 8;
// launch_norm_route if routes_in_one_block(), with a weight of the norm of x's type, then launch_gemm_skinny of groups
// with kSwiglu, to its own type; with the same bits. For up to kMaxRoutedTokens tokens. If w is fp8, it is that of
// takes_few_fp8_rows(), and the bits are those of launch_norm_route to fp8 rows and launch_gemm_fp8.
Visible launch_norm_route_swiglu(cudaStream_t stream, const NormRouteSwigluArgs& args, DType act);

// launch_qk_norm_rope, then launch_append_keys_values, with the same bits. Returns false, and does nothing, for heads
// and addresses that the kernel does not support.
bool launch_qk_norm_rope_append(cudaStream_t stream, const QkNormRopeArgs& args, const RopeFrequencies& frequencies,
                                const KeyPages& pages, DType act);

}  // namespace lfm2
