// map: a function of one tensor's elements. Its kernels are in map_zip.cuh.
#include "operators/cuda/map_zip.cuh"

namespace lfm2::operators::gpu {

Status map(UnaryFunction function, const TensorView& input, const TensorView& output, const Walk<2>& walk,
           void* stream) {
  const OnDevice on_device(output.device);
  STATUS_CHECK(on_device.status());
  if (is_trigonometric(function)) return map_trigonometric(function, input, output, walk, stream);
  return with_device_type(output.dtype, [&](auto zero) {
    return run<decltype(zero), 1, Family::kUnary>(static_cast<int>(function), output.data, {input.data}, walk, stream);
  });
}

}  // namespace lfm2::operators::gpu
