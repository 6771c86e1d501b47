// The kernels of reduce for min.
#include "operators/cuda/reduce_kernels.cuh"

namespace lfm2::operators::gpu {

Status reduce_min(const ReducePlan& plan, void* workspace, void* stream) {
  return with_device_type(plan.dtype, [&](auto zero) { return run<Min, decltype(zero)>(plan, workspace, stream); });
}

}  // namespace lfm2::operators::gpu
