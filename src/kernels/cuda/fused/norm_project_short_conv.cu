// norm_project_short_conv: rms_norm, a skinny product and the gated short convolution of its result, in one
// kernel.
#include "kernels/cuda/fused/front_norm.cuh"
#include "kernels/cuda/fused/project_short_conv.cuh"

namespace lfm2 {

namespace {

using namespace projected_conv;

// - operands: those of project_short_conv_kernel, a [m, k] before rms_norm, and its weight [k] of type T; m up to
//   kMaxFrontNormedRows, k up to kMaxFrontNormedK.
// - block: norms all rows (FrontNorm), then works as project_short_conv_kernel.
// - thread: FrontNorm defines which elements it norms; the rest as in project_short_conv_kernel.
// - alignment: that of project_short_conv_kernel; the norm's weight on 16 bytes.
template <class T, int kept>
__global__ void __launch_bounds__(kNormThreads, 2)
    norm_project_short_conv_kernel(const __grid_constant__ CUtensorMap w_map,
                                   const __grid_constant__ ProjectShortConvArgs args,
                                   const __grid_constant__ FrontNormArgs norm_args,
                                   const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ Exchange<kRowGroup, kept> exchanges[2];
  pdl_trigger_early(args.product, layout);
  const Block block = start_block(shared, &w_map, &w_map, layout, args.product.k);
  const FrontNorm<T> norm(args.product, norm_args, layout, block);
  const int warp = threadIdx.x / 32;
  if (warp == kParts) {
    load_buffers(
        args.product, &w_map, &w_map, layout, block,
        [&] { return UnitScheduler(args.product, kRowGroup, layout.unit_columns); }, [&] { norm.run(); });
  } else if (warp < kParts) {
    convolve_units<T, 1, kept>(args, layout, block, exchanges, norm);
  } else {
    pdl_wait();
    norm.run();
  }
}

template <class T, int kept>
void launch_normed_rows(cudaStream_t stream, ProjectShortConvArgs args, const FrontNormArgs& norm, DType act) {
  constexpr int kUsed = 2 * static_cast<int>(sizeof(Exchange<kRowGroup, kept>)) + kNormBytes;
  const Share share = share_of(Kernel::kNormConvolvedProduct, args.product.m).without(kUsed);
  const auto [layout, w_map, blocks] =
      division_of(args, layout_with_kept(kParts, args.product.m, args.product.k, share), act);
  args.product.n = args.conv.hidden;  // columns of a part
  constexpr auto kernel = norm_project_short_conv_kernel<T, kept>;
  allow_shared_bytes<kernel, max_bytes(Kernel::kNormConvolvedProduct) - kUsed>();
  launch_dependent("norm_project_short_conv_kernel", kernel, {blocks, kNormThreads, share.bytes}, stream, w_map, args,
                   norm, layout);
}

}  // namespace

void launch_norm_project_short_conv(cudaStream_t stream, const ProjectShortConvArgs& args, const FrontNormArgs& norm,
                                    DType act) {
  if (args.conv.tokens == 0 || args.conv.hidden == 0) return;
  with_16_bit_type(act, [&](auto zero) {
    with_kept(args.conv, [&](auto kept) { launch_normed_rows<decltype(zero), kept()>(stream, args, norm, act); });
  });
}

}  // namespace lfm2
