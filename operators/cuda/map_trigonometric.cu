// map's sine and cosine. They have separate kernels, because they reduce large arguments in local memory, which would
// slow down the other functions.
#include "operators/cuda/map_zip.cuh"

namespace lfm2::operators::gpu {

Status map_trigonometric(UnaryFunction function, const TensorView& input, const TensorView& output, const Walk<2>& walk,
                         void* stream) {
  return with_device_type(output.dtype, [&](auto zero) {
    return run<decltype(zero), 1, Family::kTrigonometric>(static_cast<int>(function), output.data, {input.data}, walk,
                                                          stream);
  });
}

}  // namespace lfm2::operators::gpu
