// What a skinny product does with its units, whatever stands in front of it: the warps that multiply, and the
// number of tiles that a unit has. For gemm_skinny.cu and the skinny products that are fused with something.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/gemm/gemm_skinny_out.cuh"
#include "kernels/cuda/gemm/gemm_skinny_tiles.cuh"

namespace lfm2::skinny {

// What each warp that multiplies does behind the wait. Where the block keeps a (`kept`), a lane reads its row
// a_row(unit's first row, rows) for a unit.
template <class T, int groups, bool kept, class F>
__device__ void multiply_units(const GemmArgs& args, bool float_out, const Layout& layout, const Block& block,
                               F a_row) {
  const int warp = threadIdx.x / 32;
  Turn turn;
  while (true) {
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    const uint4 place = load_shared_by(0, block.places + turn.buffer * 16);
    if (place.w != 0) return;
    const int first_row = static_cast<int>(place.x), rows = static_cast<int>(place.y);
    Output<T, groups> output(args, float_out, first_row, rows, static_cast<int>(place.z) + warp * kTile);
    float sums[groups][4] = {};
    UnitPieces<T, groups, kept>(layout, block, turn, a_row(first_row, rows)).multiply(sums);
    output.write(sums);
  }
}

// The number of tiles that a block takes at a time: the one with which the busiest multiprocessor has the fewest tiles
// in all, and the largest such. The rows of one or two tokens go to nearly as many groups. With more rows the host does
// not know how many groups have any: units of `grouped_tiles` spread evenly whatever it is.
inline int choose_tiles(const GemmArgs& args, int multiprocessors, int grouped_tiles = 3) {
  constexpr int64_t kTokenGroups = 8;
  if (args.offsets != nullptr && args.m > kTokenGroups) return grouped_tiles;
  const int64_t with_rows = args.offsets == nullptr ? 1 : std::min(args.m, args.groups);
  const int64_t tiles = ceil_divide(args.n, kTile);
  const auto cost = [&](int count) {
    return ceil_divide(with_rows * ceil_divide(tiles, count), multiprocessors) * count;
  };
  int best = kMaxTiles;
  for (int count = kMaxTiles - 1; count > 0; --count)
    if (cost(count) < cost(best)) best = count;
  return best;
}

}  // namespace lfm2::skinny
