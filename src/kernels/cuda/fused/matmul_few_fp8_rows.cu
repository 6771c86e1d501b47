// The skinny dense product of fp8 weights with a scale for each row, of up to eight rows that are fp8 or that the block
// rounds (skinny_fp8.cuh). A block has only 16 or a few times 16 columns, so that many SMs load w at once.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/fused/few_fp8_rows.h"
#include "kernels/cuda/fused/skinny_fp8.cuh"
#include "kernels/cuda/gemm/gemm_skinny_units.cuh"

namespace lfm2 {

namespace {

using namespace skinny;

// The next kernels' weights compete with this product's, so these kernels start late.
constexpr Share kShare{kHalf.bytes, true};
constexpr int kThreads = (kFp8Warps + 1) * 32;

template <class T>
__device__ void multiply_fp8_units(const GemmArgs& args, const Layout& layout, const Block& block, const Fp8Rows& rows);

// - operands: a [m, k] of type T, or of fp8 with a scale for each row; w [n, k] of fp8 with a scale for each row, bias
//   [n] of any type or none; out [m, n] of type T; m up to kRowGroup.
// - block: layout.tiles tiles of 16 columns at a time (UnitScheduler), for all rows.
// - thread: the last warp loads; the others keep all rows in shared memory, rounded, and multiply four tiles together,
//   of which each writes its own (multiply_fp8_units).
// - alignment: n in octets, k in steps of kFp8KStep, everything on 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    matmul_few_fp8_rows_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ GemmArgs args,
                               const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ float scales[kRowGroup];
  pdl_trigger_early(args, layout);
  const Fp8Rows rows(shared, scales);
  const Block block = start_block(shared + fp8_row_bytes(args.k), &w_map, &w_map, layout, fp8_words(args.k));
  if (threadIdx.x / 32 == kFp8Warps)
    load_buffers(
        args, &w_map, &w_map, layout, block, [&] { return UnitScheduler(args, kRowGroup, layout.unit_columns); },
        [] {});
  else
    multiply_fp8_units<T>(args, layout, block, rows);
}

template <class T>
__device__ void multiply_fp8_units(const GemmArgs& args, const Layout& layout, const Block& block,
                                   const Fp8Rows& rows) {
  const int warp = static_cast<int>(threadIdx.x / 32), m = static_cast<int>(args.m), k = static_cast<int>(args.k);
  UnitScheduler scheduler(args, kRowGroup, layout.unit_columns);
  UnitScheduler::Unit unit;
  Turn turn;
  const WgmmaOperand operand(rows.address);
  bool kept = false;
  while (scheduler.next(unit)) {
    const int column = unit.first_column + warp * kTile;
    Fp8Factors factors;
    factors.load(args, 0, column);
    pdl_wait();
    if (!kept) {
      for (int row = warp; row < m; row += kFp8Warps)
        if (args.scales.a == nullptr)
          round_row<T>(rows, row, k, [&](int c) {
            return load_packed(static_cast<const T*>(args.a) + static_cast<int64_t>(row) * k + c, kOctet, true);
          });
        else
          copy_row(rows, row, args);
      fence_proxy_async();
      named_barrier<kFp8Warps * 32>();
      kept = true;
    }
    const Output<T, 1> output(args, false, 0, warp < layout.tiles ? m : 0, column);
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    float sums[1][4] = {};
    multiply_fp8(layout, block, turn, operand, sums);
    factors.scale(rows, sums[0]);
    output.write(sums);
  }
}

}  // namespace

bool prefers_few_fp8_rows(const GemmArgs& args) {
  return args.offsets == nullptr && args.m <= kRowGroup && args.epilogue != Epilogue::kSwiglu &&
         args.scales.group == 0 && args.scales.w_rows == 1 && args.k % kFp8KStep == 0 &&
         args.k <= (args.scales.a == nullptr ? kMaxFp8K : kMaxCopiedK) && args.n <= kMaxSkinnyColumns;
}

void launch_matmul_few_fp8_rows(cudaStream_t stream, const GemmArgs& args) {
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const auto busiest = [&](int tiles) {
    return ceil_divide(ceil_divide(args.n, tiles * kTile), multiprocessors) * tiles;
  };
  int tiles = kFp8Warps;
  for (int fewer = kFp8Warps - 1; fewer > 0; --fewer)
    if (busiest(fewer) < busiest(tiles)) tiles = fewer;
  constexpr Share kOwn = kShare.without(kRowGroup * static_cast<int>(sizeof(float)));
  const Layout layout = fp8_layout(tiles, true, args.k, kOwn);
  const CUtensorMap w_map =
      pieces_map(args.w.data, DType::kF8, 1, args.n, args.k, tiles * kTile, kFp8Depth, layout.pieces);
  const int64_t units = ceil_divide(args.n, tiles * kTile);
  constexpr auto kernel = matmul_few_fp8_rows_kernel<__nv_bfloat16>;
  allow_shared_bytes<kernel, kOwn.bytes>();
  launch_dependent("matmul_few_fp8_rows_kernel", kernel,
                   {std::min<int64_t>(units, multiprocessors), kThreads, kOwn.bytes}, stream, w_map, args, layout);
}

}  // namespace lfm2
