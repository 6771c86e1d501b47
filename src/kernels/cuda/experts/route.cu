// route: which experts each token goes to, and with which weights, from its logits.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/common/limits.h"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/experts/launch.h"

namespace lfm2 {

namespace {

constexpr int kRouteWarps = 4;

__device__ ChoiceRule rule_of(const RouteArgs& args);

// For up to 32 kSets experts and kMaxChoices choices. Everything stays in registers.
// - operands: logits [tokens, experts], bias [experts] or null, all fp32; out ids, weights [tokens, top_k].
// - block: kRouteWarps tokens, one for each warp.
// - thread: lane l has the logits of experts l, l + 32, ….
// - alignment: any.
template <int kSets>
__global__ void __launch_bounds__(kRouteWarps * 32) route_few_kernel(RouteArgs args) {
  pdl_trigger();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.x / 32;
  pdl_wait();
  if (token >= args.tokens) return;
  float logits[kSets];
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
    const int e = static_cast<int>(threadIdx.x % 32) + 32 * s;
    logits[s] = e < args.experts ? args.logits[token * args.experts + e] : 0.0f;
  }
  choose_experts(logits, rule_of(args), args.ids + token * args.top_k, args.weights + token * args.top_k);
}

// For any number of experts and choices.
// - operands: those of route_few_kernel.
// - block: kRouteWarps tokens, one for each warp; in shared memory each has its probabilities and its scores [2,
//   experts].
// - thread: every 32nd expert.
// - alignment: any.
__global__ void __launch_bounds__(kRouteWarps * 32) route_kernel(RouteArgs args) {
  pdl_trigger();
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, experts = args.experts;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  pdl_wait();
  if (token >= args.tokens) return;
  float* p = shared + warp * 2 * experts;
  for (int e = lane; e < experts; e += 32) p[e] = args.logits[token * experts + e];
  choose_experts(p, p + experts, rule_of(args), args.ids + token * args.top_k, args.weights + token * args.top_k);
}

__device__ ChoiceRule rule_of(const RouteArgs& args) {
  return {args.bias, args.experts, args.top_k, args.normalize, args.scale};
}

}  // namespace

Visible launch_route(cudaStream_t stream, const RouteArgs& args) {
  if (args.tokens == 0) return Visible::kAfterWait;
  const bool few = args.experts <= 64 && args.top_k <= kMaxChoices;
  const auto kernel = !few ? route_kernel : args.experts <= 32 ? route_few_kernel<1> : route_few_kernel<2>;
  static_assert(kRouteWarps * 2 * kMaxExperts * sizeof(float) <= kSharedBytesUnasked);
  const int shared_bytes = few ? 0 : kRouteWarps * 2 * args.experts * static_cast<int>(sizeof(float));
  launch_dependent("route_kernel", kernel, {ceil_divide(args.tokens, kRouteWarps), kRouteWarps * 32, shared_bytes},
                   stream, args);
  return Visible::kAfterWait;
}

}  // namespace lfm2
