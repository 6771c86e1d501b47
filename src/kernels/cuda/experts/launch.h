// The launchers of the kernels in this folder (common/launchers.h). What they compute is defined in kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/any_array.h"
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/limits.h"

namespace lfm2 {

struct RouteArgs {
  const float* logits;  // [tokens, experts]
  const float* bias;    // [experts] or null
  int32_t* ids;         // [tokens, top_k]
  float* weights;       // [tokens, top_k]
  int64_t tokens;
  int experts, top_k;
  bool normalize;
  float scale;
};
Visible launch_route(cudaStream_t stream, const RouteArgs& args);

// normed = rms_norm(x), with the bits of launch_rms_norm; logits = normed gateᵀ in fp32; then route. If there are few
// assignments, up to 32 kMaxRouteBlocks, the same launch also groups them and scatters their rows.
struct NormRouteArgs {
  const void* x;      // [tokens, hidden]
  AnyArray gate;      // [experts, hidden]
  const float* bias;  // [experts] or null
  int32_t* ids;       // [tokens, top_k]
  float* weights;     // [tokens, top_k]
  int64_t tokens, hidden;
  int experts, top_k;
  bool normalize;
  float scale;
  void* normed;          // [tokens, hidden]; may be x
  AnyArray norm_weight;  // [hidden]
  float eps;
  // What group_by_expert and scatter_rows write.
  int32_t *sources, *rows, *offsets;  // [tokens top_k], [tokens, top_k], [experts + 1]
  void* sorted;                       // [tokens top_k, hidden]
  // If sorted is fp8: the sorted rows, and the rows [tokens, hidden] that are scattered to them if the launch does not
  // group. If the launch returns `rounded`, the normed rows are not written.
  RoundedRows rounded_sorted{}, rounded{};
  uint8_t* exchange;     // [kRouteExchangeBytes]: 0 at first, then what a launch leaves for the next
  int reserved_sms = 0;  // as GemmArgs's
};
constexpr int kMaxRouteBlocks = 128;
constexpr int64_t kRouteExchangeBytes = kMaxRouteBlocks * 32 + 1;
struct [[nodiscard]] NormRouteResult {
  bool grouped;  // the assignments are grouped, and their rows scattered; if not, the caller does so
  bool rounded;  // for fp8 rows: they are rounded; if not, the normed rows are those of rms_norm
  Visible routing;
};
NormRouteResult launch_norm_route(cudaStream_t stream, const NormRouteArgs& args, DType act);

// Whether one block of 16-bit types does all of that, with one mma tile of tokens.
bool routes_in_one_block(const NormRouteArgs& args, DType act);

struct GroupByExpertArgs {
  const int32_t* ids;  // [assignments]
  int32_t* sources;    // [assignments]
  int32_t* rows;       // [assignments]
  int32_t* offsets;    // [experts + 1]
  int32_t* workspace;  // [kGroupWorkspaceInts]
  int64_t assignments;
  int experts, top_k;
};
constexpr int kMaxGroupBlocks = 256;
constexpr int64_t kGroupWorkspaceInts = int64_t{kMaxGroupBlocks} * kMaxExperts;
Visible launch_group_by_expert(cudaStream_t stream, const GroupByExpertArgs& args);

struct CombineExpertsArgs {
  const void* y;         // [tokens top_k, hidden]
  const int32_t* rows;   // [tokens, top_k]
  const float* weights;  // [tokens, top_k]
  void* residual;        // [tokens, hidden]
  int64_t tokens, hidden;
  int top_k;
  Visible routing_visible;  // rows and weights
};
void launch_combine_experts(cudaStream_t stream, const CombineExpertsArgs& args, DType act);

// combine_experts, then normed = rms_norm of the new, rounded residual, with the bits of launch_rms_norm.
struct CombineExpertsNormArgs {
  CombineExpertsArgs combine;
  void* normed;          // [tokens, hidden]
  AnyArray norm_weight;  // [hidden]
  float eps;
  RoundedRows rounded{};  // [tokens, hidden]: if it has elements, they receive the norm instead of `normed`
};
void launch_combine_experts_norm(cudaStream_t stream, const CombineExpertsNormArgs& args, DType act);

}  // namespace lfm2
