// short_conv: the short convolution of whole samples. Its kernels are in short_conv.cuh.
#include "kernels/cuda/rows/short_conv.cuh"

namespace lfm2 {

void launch_short_conv(cudaStream_t stream, const ShortConvArgs& args, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  with_device_type(act, [&](auto zero) { conv::launch_kernels<decltype(zero), false>(stream, args, {}); });
}

}  // namespace lfm2
