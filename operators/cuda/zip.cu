// zip: a function of two tensors' elements. Its kernels are in map_zip.cuh.
#include "operators/cuda/map_zip.cuh"

namespace lfm2::operators::gpu {

Status zip(BinaryFunction function, const TensorView& a, const TensorView& b, const TensorView& output,
           const Walk<3>& walk, void* stream) {
  const OnDevice on_device(output.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(output.dtype, [&](auto zero) {
    return run<decltype(zero), 2, Family::kBinary>(static_cast<int>(function), output.data, {a.data, b.data}, walk,
                                                   stream);
  });
}

}  // namespace lfm2::operators::gpu
