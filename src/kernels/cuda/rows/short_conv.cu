// short_conv: the short convolution of whole samples. Its kernels are in short_conv.cuh.
#include "kernels/cuda/rows/short_conv.cuh"

namespace lfm2 {

bool short_conv_rounds(int64_t hidden, int64_t taps, DType act) {
  return act == DType::kBf16 && taps == 3 && hidden % kConvBlockChannels == 0 && hidden <= conv::kBlockRow;
}

void launch_short_conv(cudaStream_t stream, const ShortConvArgs& args, DType act) {
  if (args.tokens == 0 || args.hidden == 0) return;
  with_device_type(act, [&](auto zero) { conv::launch_kernels<decltype(zero), false>(stream, args, {}); });
}

}  // namespace lfm2
