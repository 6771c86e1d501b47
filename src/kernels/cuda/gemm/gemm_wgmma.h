// The tiles of gemm_wgmma_kernel.cuh. They are chosen for speed alone, because they change no bit of the result.
#pragma once

#include "kernels/cuda/gemm/launch.h"

namespace lfm2 {

struct WgmmaTile {
  int rows, columns;
  int cluster;  // number of thread blocks: 1, or 2, with 128 rows or transposed
  // The transpose is computed (swap-AB): rows of w are the instruction's rows, and rows of a its columns. There may be
  // any multiple of 8 columns, so a tile multiplies no more rows of a than there are. Only for outputs of the operands'
  // type; with more than kMaxDirectRows rows, only without bias and addition. The blocks of a cluster share rows of a.
  bool transposed = false;
  // a is bf16, and every block rounds the rows of its tiles to fp8 with a scale for each row, as Ops::quantize does.
  // Only transposed, with k up to kMaxRoundedK.
  bool rounds = false;
  bool operator==(const WgmmaTile&) const = default;
};

inline constexpr int kMaxDirectRows = 16, kMaxRoundedK = 2048;

// All tiles. Each uses an SM's whole shared memory, or, with few rows, half of it.
inline constexpr WgmmaTile kWgmmaTiles[] = {{128, 256, 2}, {128, 256, 1}, {128, 192, 1}, {128, 128, 1},
                                            {128, 96, 1},  {64, 128, 1},  {64, 96, 1},   {64, 64, 1}};
inline constexpr WgmmaTile kWgmmaSwigluTiles[] = {{128, 256, 2}, {128, 128, 1}};
inline constexpr WgmmaTile kWgmmaTransposedTiles[] = {
    {32, 128, 1, true}, {64, 128, 1, true}, {128, 128, 1, true}, {160, 128, 2, true}, {256, 128, 2, true}};

// For fp8, whose sums need twice the registers.
inline constexpr WgmmaTile kFp8Tiles[] = {{128, 128, 2}, {128, 128, 1}, {64, 64, 1}};
inline constexpr WgmmaTile kFp8SwigluTiles[] = {{128, 128, 2}, {128, 128, 1}};
inline constexpr WgmmaTile kFp8TransposedTiles[] = {{16, 64, 1, true},  {16, 128, 1, true},  {32, 128, 1, true},
                                                    {64, 128, 1, true}, {128, 128, 1, true}, {160, 128, 2, true}};
inline constexpr WgmmaTile kFp8RoundingTile{16, 64, 1, true, true};

// `out` is the type of the output.
WgmmaTile choose_wgmma_tile(const GemmArgs& args, DType out, int multiprocessors);
WgmmaTile choose_fp8_tile(const GemmArgs& args, int multiprocessors);

// The same as launch_gemm_wgmma and launch_gemm_fp8, with this tile, which is one of those above.
void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out, WgmmaTile tile);
void launch_gemm_fp8(cudaStream_t stream, const GemmArgs& args, WgmmaTile tile);

}  // namespace lfm2
