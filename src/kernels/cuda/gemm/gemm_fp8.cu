// The products of gemm_wgmma_kernel.cuh for fp8: their tiles, and the choice among them.
#include "kernels/cuda/gemm/gemm_wgmma_kernel.cuh"

namespace lfm2 {

namespace {

// The width of tiles of few rows, 64 or 128 columns, that gives the busiest SM the fewest columns.
int choose_columns(const GemmArgs& args, int multiprocessors) {
  const auto of_the_busiest = [&](int64_t columns) {
    const int64_t tiles = std::min(args.m, args.groups) * ceil_divide(args.n, columns);
    return ceil_divide(tiles, multiprocessors) * columns;
  };
  return of_the_busiest(64) < of_the_busiest(128) ? 64 : 128;
}

}  // namespace

WgmmaTile choose_fp8_tile(const GemmArgs& args, int multiprocessors) {
  if (args.scales.a == nullptr) return kFp8RoundingTile;
  // Groups have unequal numbers of rows, so a tile has room for twice the mean. Of tiles of up to kMaxDirectRows rows,
  // two fit on an SM, so that the next kernel finds room: that pays if there are few rows.
  constexpr int64_t kFewRows = 32;
  const auto fits = [&](const WgmmaTile& tile) {
    if (tile.rows <= kMaxDirectRows && (args.m > kFewRows || choose_columns(args, multiprocessors) != tile.columns))
      return false;
    return takes_transposed(args, false, tile.rows) &&
           (args.offsets == nullptr ? 1 : 2) * args.m <= args.groups * tile.rows;
  };
  for (const WgmmaTile tile : kFp8TransposedTiles)
    if (tile.cluster == 1 && fits(tile)) return tile;
  // Groups are uneven: tiles of 128 rows would leave a few rows of many groups over, and a tile of few rows takes most
  // of the time of a whole one. The factors of groups of k leave registers for fewer rows.
  constexpr WgmmaTile kRoomy{160, 128, 2, true};
  const int64_t most_rows = args.scales.group == 0 ? 256 : 144;
  if (args.offsets != nullptr && takes_transposed(args, false, kRoomy.rows) && args.m <= args.groups * most_rows)
    return kRoomy;
  const auto tiles = [&](int64_t side) {
    return std::max(ceil_divide(args.m, side), std::min(args.m, args.groups)) * ceil_divide(args.n, side);
  };
  if (tiles(128) >= 2 * multiprocessors || args.offsets != nullptr) return {128, 128, 2};
  // An SM takes two and a half times as long for a tile of 128 x 128 as for one of 64 x 64.
  const bool wide = 5 * ceil_divide(tiles(128), multiprocessors) <= 2 * ceil_divide(tiles(64), multiprocessors);
  if (args.epilogue == Epilogue::kSwiglu || wide) return {128, 128, 1};
  return {64, 64, 1};
}

void launch_gemm_fp8(cudaStream_t stream, const GemmArgs& args, WgmmaTile tile) {
  if (args.m == 0 || args.n == 0 || args.groups == 0) return;
  if (tile == kFp8RoundingTile) {
    if (args.epilogue == Epilogue::kSwiglu || args.k > kMaxRoundedK || args.scales.group != 0)
      CUDA_CHECK(cudaErrorInvalidValue);
    return launch_tile<Fp8ByRow, __nv_bfloat16, kFp8RoundingTile, false>(stream, args, DType::kF8, false);
  }
  with_constant(args.scales.group != 0, [&](auto by_group) {
    using T = std::conditional_t<by_group(), Fp8ByGroup, Fp8ByRow>;
    launch_product<T, __nv_bfloat16, kFp8Tiles, kFp8SwigluTiles, kFp8TransposedTiles>(stream, args, DType::kF8, false,
                                                                                      tile);
  });
}

void launch_gemm_fp8(cudaStream_t stream, const GemmArgs& args) {
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount) - args.reserved_sms;
  launch_gemm_fp8(stream, args, choose_fp8_tile(args, multiprocessors));
}

}  // namespace lfm2
