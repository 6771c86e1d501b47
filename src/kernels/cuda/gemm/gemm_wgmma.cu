// The products of gemm_wgmma_kernel.cuh for bf16 and fp16: their tiles, and the choice among them.
#include "kernels/cuda/gemm/gemm_wgmma_kernel.cuh"

namespace lfm2 {

WgmmaTile choose_wgmma_tile(const GemmArgs& args, DType out, int multiprocessors) {
  const bool grouped = args.offsets != nullptr, swiglu = args.epilogue == Epilogue::kSwiglu;
  // If groups have few rows, multiplying rows that do not exist costs power, and so clock rate. Groups are uneven: a
  // tile has room for twice the mean number of rows, or, if it is large, for kSpareRows more.
  constexpr int kSpareRows = 64;
  if (grouped && takes_transposed(args, out == DType::kF32, kWgmmaTransposedTiles[0].rows))
    for (const WgmmaTile tile : kWgmmaTransposedTiles)
      if (args.m <= args.groups * (tile.cluster == 1 ? tile.rows / 2 : tile.rows - kSpareRows)) return tile;
  // The time of the busiest SM, with the times of tiles that bench_tiles measures.
  const auto cost = [&](WgmmaTile tile) {
    const int64_t row_tiles = std::max(ceil_divide(args.m, tile.rows), std::min(args.m, args.groups));
    const int64_t each = tile.rows == kWgmmaGroupRows ? 5 * tile.columns + 355 : 12 * tile.columns + 240;
    return ceil_divide(row_tiles * ceil_divide(args.n, tile.columns), multiprocessors) * each;
  };
  // Clusters save traffic. That matters if many groups' weights are read, or if the product is so large that power
  // limits it. Clusters lose time if there is little to do.
  constexpr int kManyTiles = 4;  // for each SM
  constexpr WgmmaTile kWide{128, 256, 2}, kNarrow{128, 128, 1};
  if (grouped && swiglu) return kWide;
  if (grouped || swiglu) return cost(kNarrow) < cost(kWide) ? kNarrow : kWide;
  constexpr WgmmaTile kWideAlone{128, 256, 1};
  WgmmaTile best = kWideAlone;
  for (const WgmmaTile tile : kWgmmaTiles)
    if (tile.cluster == 1 && cost(tile) < cost(best)) best = tile;
  const int64_t tiles = ceil_divide(args.m, kWideAlone.rows) * ceil_divide(args.n, kWideAlone.columns);
  return best == kWideAlone && tiles >= kManyTiles * multiprocessors ? kWide : best;
}

void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out, WgmmaTile tile) {
  if (args.m == 0 || args.n == 0 || args.groups == 0) return;
  const bool float_out = args.epilogue != Epilogue::kSwiglu && out == DType::kF32;
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    launch_product<T, T, kWgmmaTiles, kWgmmaSwigluTiles, kWgmmaTransposedTiles>(stream, args, act, float_out, tile);
  });
}

void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out) {
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  launch_gemm_wgmma(stream, args, act, out, choose_wgmma_tile(args, out, multiprocessors));
}

}  // namespace lfm2
