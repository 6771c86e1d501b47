// The products of gemm_wgmma_kernel.cuh for fp8: their tiles, and the choice among them.
#include "kernels/cuda/gemm/gemm_wgmma_kernel.cuh"

namespace lfm2 {

WgmmaTile choose_fp8_tile(const GemmArgs& args, int multiprocessors) {
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  if (takes_transposed(args, false))
    for (const WgmmaTile tile : kFp8TransposedTiles)
      if ((args.offsets == nullptr ? 1 : 2) * args.m <= args.groups * tile.rows) return tile;
  const int64_t row_tiles = std::max(ceil_divide(args.m, 128), std::min(args.m, args.groups));
  const int64_t tiles = row_tiles * ceil_divide(args.n, 128);
  if (tiles >= 2 * multiprocessors || args.offsets != nullptr) return {128, 128, 2};
  if (swiglu || tiles >= multiprocessors) return {128, 128, 1};
  return {64, 64, 1};
}

void launch_gemm_fp8(cudaStream_t stream, const GemmArgs& args, WgmmaTile tile) {
  if (args.m == 0 || args.n == 0 || args.groups == 0) return;
  with_constant(args.scales.group != 0, [&](auto by_group) {
    using T = std::conditional_t<by_group(), Fp8ByGroup, Fp8ByRow>;
    launch_product<T, __nv_bfloat16, kFp8Tiles, kFp8SwigluTiles, kFp8TransposedTiles>(stream, args, DType::kF8, false,
                                                                                      tile);
  });
}

void launch_gemm_fp8(cudaStream_t stream, const GemmArgs& args) {
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  launch_gemm_fp8(stream, args, choose_fp8_tile(args, multiprocessors));
}

}  // namespace lfm2
