// The kernels of reduce for products.
#include "operators/cuda/reduce_kernels.cuh"

namespace lfm2::operators::gpu {

Status reduce_prod(const ReducePlan& plan, void* workspace, void* stream) {
  return with_device_type(plan.dtype, [&](auto zero) { return run<Prod, decltype(zero)>(plan, workspace, stream); });
}

}  // namespace lfm2::operators::gpu
