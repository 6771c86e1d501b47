// project_short_conv: a skinny product and the gated short convolution of its result, in one kernel.
#include "kernels/cuda/fused/project_short_conv.cuh"

namespace lfm2 {

namespace {

using namespace projected_conv;

// - operands: those of a skinny product, a [m, k] and w [3 hidden, k] of type T, with product.n = hidden, and those of
//   short_conv_pairs_kernel with states of up to `kept` entries, except bcz; sequence t has only token t.
// - block: processes one unit after another: a tile of B, of C and of z, for 16 channels, and up to 8 `groups` tokens.
// - thread: the last warp loads (load_buffers); each of the others multiplies a tile, and all of them convolve
//   (convolve_units).
// - alignment: k in octets, hidden in sixteens; a, w and the states on 16 bytes.
template <class T, int groups, int kept>
__global__ void __launch_bounds__(kConvThreads + 32, 4)
    project_short_conv_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                              const __grid_constant__ ProjectShortConvArgs args,
                              const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ Exchange<groups * kRowGroup, kept> exchanges[2];
  pdl_trigger_early(args.product, layout);
  const Block block = start_block(shared, &a_map, &w_map, layout, args.product.k);
  if (threadIdx.x / 32 == kParts) {
    load_buffers(args.product, &a_map, &w_map, layout, block,
                 [&] { return UnitScheduler(args.product, groups * kRowGroup, layout.unit_columns); });
  } else {
    convolve_units<T, groups, kept>(args, layout, block, exchanges, NoNorm{});
  }
}

template <class T, int groups, int kept>
void launch_convolved_rows(cudaStream_t stream, ProjectShortConvArgs args, DType act) {
  constexpr int kRows = groups * kRowGroup;
  constexpr int kUsed = 2 * static_cast<int>(sizeof(Exchange<kRows, kept>));
  const Share share = share_of(Kernel::kConvolvedProduct, args.product.m).without(kUsed);
  const auto [layout, w_map, blocks] = division_of(args, layout_of(kParts, kRows, args.product.k, share), act);
  const CUtensorMap a_map =
      pieces_map(args.product.a, act, 1, args.product.m, args.product.k, kRows, kDepth, layout.pieces);
  args.product.n = args.conv.hidden;  // columns of a part
  constexpr auto kernel = project_short_conv_kernel<T, groups, kept>;
  allow_shared_bytes<kernel, max_bytes(Kernel::kConvolvedProduct) - kUsed>();
  launch_dependent("project_short_conv_kernel", kernel, {blocks, kConvThreads + 32, share.bytes}, stream, a_map, w_map,
                   args, layout);
}

}  // namespace

void launch_project_short_conv(cudaStream_t stream, const ProjectShortConvArgs& args, DType act) {
  if (args.conv.tokens == 0 || args.conv.hidden == 0) return;
  static_assert(kMaxConvolvedRows == 2 * kRowGroup);
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    with_kept(args.conv, [&](auto kept) {
      if (args.conv.tokens <= kRowGroup) return launch_convolved_rows<T, 1, kept()>(stream, args, act);
      launch_convolved_rows<T, 2, kept()>(stream, args, act);
    });
  });
}

}  // namespace lfm2
