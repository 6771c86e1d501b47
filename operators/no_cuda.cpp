// For builds without CUDA: there is no device, and every operator on one answers kNoCuda.
#include "operators/gpu.h"

namespace lfm2::operators::gpu {

Status concat(const ConcatArgs&, ConcatWay, void*) { return Status::kNoCuda; }
Status bias(const TensorView&, const TensorView&, const TensorView&, BiasLayout, Activation, void*) {
  return Status::kNoCuda;
}
Status map(UnaryFunction, const TensorView&, const TensorView&, const Walk<2>&, void*) { return Status::kNoCuda; }
Status zip(BinaryFunction, const TensorView&, const TensorView&, const TensorView&, const Walk<3>&, void*) {
  return Status::kNoCuda;
}
Status reduce(const ReducePlan&, void*, void*) { return Status::kNoCuda; }
Status matmul(const MatmulPlan&, void*) { return Status::kNoCuda; }
Status causal_conv1d(const TensorView&, const TensorView&, const TensorView*, const TensorView&, Activation, void*) {
  return Status::kNoCuda;
}
Status causal_conv1d_unfold(const TensorView&, int64_t, const TensorView&, void*) { return Status::kNoCuda; }
Status causal_conv1d_expand(const TensorView&, const TensorView&, void*) { return Status::kNoCuda; }

int device_count() { return 0; }
Status allocate(int, size_t, void**) { return Status::kNoCuda; }
Status release(int, void*) { return Status::kNoCuda; }
Status copy(int, void*, const void*, size_t, void*) { return Status::kNoCuda; }
Status synchronize(int, void*) { return Status::kNoCuda; }
Status device_of_pointer(const void*, int& device) {
  device = kCpu;
  return Status::kOk;
}
const char* error_text(int) { return "an error of CUDA, in a build without it"; }

}  // namespace lfm2::operators::gpu
