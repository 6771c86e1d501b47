// The kernels of reduce for max.
#include "operators/cuda/reduce_kernels.cuh"

namespace lfm2::operators::gpu {

Status reduce_max(const ReducePlan& plan, void* workspace, void* stream) {
  return with_device_type(plan.dtype, [&](auto zero) { return run<Max, decltype(zero)>(plan, workspace, stream); });
}

}  // namespace lfm2::operators::gpu
