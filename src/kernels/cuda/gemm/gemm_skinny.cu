// Skinny matrix products (of few rows) of bf16 and fp16, as decoding has them; dense and grouped. Reading w takes most
// of their time. So the operands' roles are exchanged (swap-AB): 16 rows of w, a tile, are the rows of a warp's
// mma.sync, and all rows of a are the columns of one or two of them. One more warp loads tile buffers ahead for the
// block's other warps. No kernel writes weights, so the tile buffers fill while the previous kernel still runs.
//
// Each output is summed over k in steps of 16 in order, in one fp32 accumulator. So the bits are those of
// gemm_wgmma.cu, and the host may choose between the two by the number of rows.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/gemm/gemm_skinny_units.cuh"

namespace lfm2 {

namespace {

using namespace skinny;

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a and w of type T, out of
//   type T or fp32 (`float_out`), bias of any type; a_map and w_map describe a and w to the copy engine.
// - block: processes one unit after another: layout.tiles tiles of 16 rows of w with up to 8 `groups` rows of a
//   (UnitScheduler).
// - thread: the last warp loads (load_buffers); each of the others multiplies a tile of w and writes its 16 columns of
//   out (multiply_units).
// - alignment: n and k in octets (kSwiglu: n in sixteens), everything on 16 bytes.
template <class T, int groups>
__global__ void __launch_bounds__((kMaxTiles + 1) * 32, 2)
    gemm_skinny_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                       const __grid_constant__ GemmArgs args, const __grid_constant__ Layout layout, bool float_out) {
  extern __shared__ char shared[];
  pdl_trigger_early(args, layout);
  const Block block = start_block(shared, &a_map, &w_map, layout, args.k);
  const int warp = threadIdx.x / 32;
  if (warp == layout.tiles) {
    load_buffers(args, &a_map, &w_map, layout, block,
                 [&] { return UnitScheduler(args, groups * kRowGroup, layout.unit_columns); });
  } else {
    pdl_wait();
    multiply_units<T, groups, false>(args, float_out, layout, block, [](int, int) { return row_of_lane<groups>(); });
  }
}

template <class T, int groups>
void launch_rows(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out) {
  constexpr int kRows = groups * kRowGroup;
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  constexpr int kMaxBytes = std::max({kHalf.bytes, max_bytes(Kernel::kWideProduct), max_bytes(Kernel::kNarrowProduct)});
  const Kernel width = args.n > args.k ? Kernel::kWideProduct : Kernel::kNarrowProduct;
  const Share share = args.offsets != nullptr ? kHalf : share_of(width, args.m);
  const Layout layout = layout_of(choose_tiles(args, multiprocessors), kRows, args.k, share);
  constexpr auto kernel = gemm_skinny_kernel<T, groups>;
  allow_shared_bytes<kernel, kMaxBytes>();
  const CUtensorMap a_map = pieces_map(args.a, act, 1, args.m, args.k, kRows, kDepth, layout.pieces);
  const CUtensorMap w_map =
      pieces_map(args.w.data, act, args.groups, args.n, args.k, layout.box_tiles * kTile, kDepth, layout.pieces);
  const int64_t units = row_tile_bound(args.m, args.groups, kRows) * ceil_divide(args.n, layout.tiles * kTile);
  launch_dependent("gemm_skinny_kernel", kernel,
                   {std::min<int64_t>(units, multiprocessors), (layout.tiles + 1) * 32, share.bytes}, stream, a_map,
                   w_map, args, layout, float_out);
}

}  // namespace

void launch_gemm_skinny(cudaStream_t stream, const GemmArgs& args, DType act, DType out) {
  if (args.m == 0 || args.n == 0 || args.groups == 0) return;
  const bool float_out = out == DType::kF32 && args.epilogue != Epilogue::kSwiglu;
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    // Rows that are spread over many groups: few groups have more than one row.
    const int64_t rows = args.offsets == nullptr ? args.m : args.m / 4;
    return rows <= kRowGroup ? launch_rows<T, 1>(stream, args, act, float_out)
                             : launch_rows<T, 2>(stream, args, act, float_out);
  });
}

}  // namespace lfm2
