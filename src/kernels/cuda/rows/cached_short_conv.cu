// cached_short_conv: the short convolution of the next tokens of sequences whose last inputs are cached. Its kernels
// are in short_conv.cuh.
#include "kernels/cuda/rows/short_conv.cuh"

namespace lfm2 {

void launch_cached_short_conv(cudaStream_t stream, const ShortConvArgs& args, const CachedConvArgs& cache, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  with_device_type(act, [&](auto zero) { conv::launch_kernels<decltype(zero), true>(stream, args, cache); });
}

}  // namespace lfm2
