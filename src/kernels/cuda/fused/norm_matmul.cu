// norm_matmul: rms_norm and then a skinny dense product, in one kernel.
#include <algorithm>

#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/fused/front_norm.cuh"
#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/gemm/gemm_skinny_units.cuh"

namespace lfm2 {

namespace {

using namespace skinny;

// - operands: those of gemm_skinny_kernel with one group, a [m, k] before rms_norm, and its weight [k] of type T; out
//   of type T; m up to kMaxFrontNormedRows, k up to kMaxFrontNormedK.
// - block: norms all rows (FrontNorm), then works as gemm_skinny_kernel.
// - thread: FrontNorm defines which elements it norms; the rest as in gemm_skinny_kernel.
// - alignment: n and k in octets, everything on 16 bytes.
template <class T>
__global__ void __launch_bounds__(kNormThreads, 2)
    norm_matmul_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ GemmArgs args,
                       const __grid_constant__ FrontNormArgs norm_args, const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  pdl_trigger_early(args, layout);
  const Block block = start_block(shared, &w_map, &w_map, layout, args.k);
  const FrontNorm<T> norm(args, norm_args, layout, block);
  const int warp = threadIdx.x / 32;
  if (warp == layout.tiles) {
    load_buffers(
        args, &w_map, &w_map, layout, block, [&] { return UnitScheduler(args, kRowGroup, layout.unit_columns); },
        [&] { norm.run(); });
  } else if (warp < layout.tiles) {
    pdl_wait();
    norm.run();
    const int a_row = kept_row_of_lane(layout);
    multiply_units<T, 1, true>(args, false, layout, block, [=](int, int) { return a_row; });
  } else {
    pdl_wait();
    norm.run();
  }
}

template <class T>
void launch_normed_product(cudaStream_t stream, const GemmArgs& args, const FrontNormArgs& norm, DType act) {
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const Share share = share_of(Kernel::kNormProduct, args.m).without(kNormBytes);
  const Layout layout = layout_with_kept(choose_tiles(args, multiprocessors), args.m, args.k, share);
  constexpr auto kernel = norm_matmul_kernel<T>;
  allow_shared_bytes<kernel, max_bytes(Kernel::kNormProduct) - kNormBytes>();
  const CUtensorMap w_map =
      pieces_map(args.w.data, act, 1, args.n, args.k, layout.box_tiles * kTile, kDepth, layout.pieces);
  const auto blocks = std::min<int64_t>(ceil_divide(args.n, layout.tiles * kTile), multiprocessors);
  launch_dependent("norm_matmul_kernel", kernel, {blocks, kNormThreads, share.bytes}, stream, w_map, args, norm,
                   layout);
}

}  // namespace

void launch_norm_matmul(cudaStream_t stream, const GemmArgs& args, const FrontNormArgs& norm, DType act) {
  if (args.m == 0 || args.n == 0) return;
  static_assert(kMaxFrontNormedRows == kRowGroup && kMaxFrontNormedK == kNormThreads * kOctet &&
                (kMaxTiles + 1) * 32 <= kNormThreads);
  with_16_bit_type(act, [&](auto zero) { launch_normed_product<decltype(zero)>(stream, args, norm, act); });
}

}  // namespace lfm2
