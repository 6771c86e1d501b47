// Turns a warp's sums, in registers, into output: bias, SwiGLU, addition, rounding. For skinny products.
#pragma once

#include "kernels/cuda/gemm/gemm_skinny_scheduler.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_out.cuh"

namespace lfm2::skinny {

// Writes a warp's sums to out. Of each eight rows of a, lane l has the rows 2 (l % 4) + {0, 1}, and of these the
// columns l / 4 and l / 4 + 8 of the tile.
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

}  // namespace lfm2::skinny
