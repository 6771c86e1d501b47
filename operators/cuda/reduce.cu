// reduce: chooses the function; each is compiled in a separate file.
#include "operators/cuda/reduce.cuh"

namespace lfm2::operators::gpu {

Status reduce(const ReducePlan& plan, void* workspace, void* stream) {
  const OnDevice on_device(plan.device);
  STATUS_CHECK(on_device.status());
  switch (plan.function) {
    case ReduceFunction::kSum:
    case ReduceFunction::kMean:
      return reduce_sum(plan, workspace, stream);
    case ReduceFunction::kProd:
      return reduce_prod(plan, workspace, stream);
    case ReduceFunction::kMax:
      return reduce_max(plan, workspace, stream);
    case ReduceFunction::kMin:
      return reduce_min(plan, workspace, stream);
    case ReduceFunction::kCount:
      break;
  }
  return Status::kInvalid;
}

}  // namespace lfm2::operators::gpu
