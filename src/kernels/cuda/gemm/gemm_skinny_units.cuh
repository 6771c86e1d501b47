// The warps of skinny products that multiply, their epilogue (bias, SwiGLU, addition, rounding), and the number of
// tiles of a unit. For gemm_skinny.cu and the skinny products that are fused with other operators.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/gemm/gemm_skinny_scheduler.cuh"
#include "kernels/cuda/gemm/gemm_skinny_tiles.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_out.cuh"

namespace lfm2::skinny {

// Writes a warp's sums to out. The rows of w are columns of out. Of each eight rows of a:
//              columns l / 4    l / 4 + 8      of the tile, for lane l
//   rows 2 (l % 4) + {0, 1}:  sums[g][0, 1]  sums[g][2, 3]
template <class T, int groups>
class Output {
 public:
  __device__ Output(const GemmArgs& args, bool float_out, int first_row, int rows, int column)
      : args_(args),
        float_out_(float_out),
        row_(first_row + threadIdx.x % 4 * 2),
        rows_(rows - static_cast<int>(threadIdx.x % 4 * 2)),
        tile_column_(column),
        column_(column + threadIdx.x % 32 / 4) {
    // The old values are loaded while the sums are computed.
    if (args_.epilogue == Epilogue::kAdd)
      each([&](int g, int i, int64_t at, int) {
        old_[g][i] =
            float_out_ ? static_cast<const float*>(args_.out)[at] : to_f32(static_cast<const T*>(args_.out)[at]);
      });
  }

  __device__ void write(const float (&sums)[groups][4]) const {
    if (args_.epilogue == Epilogue::kSwiglu) {
      const int64_t n = args_.n / 2, first = row_ * n + tile_column_ / 2 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int g = 0; g < groups; ++g)
#pragma unroll
        for (int i = 0; i < 2; ++i)  // the second eight columns are those of the up rows
          if (g * kRowGroup + i < rows_ && column_ < args_.n)
            static_cast<T*>(args_.out)[first + (g * kRowGroup + i) * n] = rounded<T>(silu(sums[g][i]) * sums[g][i + 2]);
      return;
    }
    each([&](int g, int i, int64_t at, int column) {
      float value = sums[g][i];
      if (args_.bias.data != nullptr) value += load_one(args_.bias, column);
      if (args_.epilogue == Epilogue::kAdd) value += old_[g][i];
      if (float_out_)
        static_cast<float*>(args_.out)[at] = value;
      else
        static_cast<T*>(args_.out)[at] = rounded<T>(value);
    });
  }

 private:
  template <class F>
  __device__ void each(F f) const {
#pragma unroll
    for (int g = 0; g < groups; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = g * kRowGroup + i % 2, column = column_ + i / 2 * 8;
        if (row < rows_ && column < args_.n) f(g, i, (row_ + row) * args_.n + column, column);
      }
  }

  const GemmArgs& args_;
  bool float_out_;
  int64_t row_;  // the lane's first row
  int rows_;     // rows from the lane's first one on
  int tile_column_, column_;
  float old_[groups][4];
};

// What each warp that multiplies does after the wait. If the block keeps a (`kept`), a lane reads row a_row(first row,
// rows) of it for a unit.
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

// The number of tiles that a block computes at a time: the largest with which the busiest SM has the fewest tiles in
// all. The rows of one or two tokens go to nearly m groups. With more rows the host does not know how many groups have
// any; units of `grouped_tiles` then spread evenly in any case.
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
