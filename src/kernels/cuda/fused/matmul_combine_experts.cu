// The skinny grouped product followed by the weighted sum of the experts. A block computes its columns for all experts
// that have rows, keeps the products in shared memory, and adds them to the residual itself, so y is never written.
// gemm_skinny.cu explains how such a product is computed.
//
// The bits are those of gemm_skinny.cu and of combine_experts_kernel, one after the other: the sums are rounded as the
// product's store rounds them, and the rest has the same operations in the same order.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/fused/expert_parts.cuh"

namespace lfm2 {

namespace {

using namespace expert_parts;

__device__ void load_parts(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                           const Layout& layout, const Block& block);
template <class T>
__device__ void combine_units(const MatmulCombineExpertsArgs& args, const Layout& layout, const Block& block,
                              ExpertProducts& products);

// - operands: those of a skinny grouped product, a [m, k] and w [groups, n, k] of type T, and those of
//   combine_experts_kernel, except y; m = tokens top_k, up to kMaxRows, and hidden = n.
// - block: processes one unit after another (PartsScheduler): 16 columns, which it computes for all rows, in up to
//   kUnitParts parts at a time.
// - thread: the last warp loads (load_parts); each of the others multiplies a part, and then each of their threads
//   combines one column of one token (combine_units).
// - alignment: n and k in octets, a and w on 16 bytes.
template <class T>
__global__ void __launch_bounds__(kSumThreads + 32, 2)
    matmul_combine_experts_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                                  const __grid_constant__ MatmulCombineExpertsArgs args,
                                  const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ ExpertProducts products;
  pdl_trigger_early(args.product, layout);
  const Block block = start_block(shared, &a_map, &w_map, layout, args.product.k);
  if (threadIdx.x / 32 == kUnitParts) {
    load_parts(args.product, &a_map, &w_map, layout, block);
  } else {
    combine_units<T>(args, layout, block, products);
  }
}

__device__ void load_parts(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                           const Layout& layout, const Block& block) {
  load_buffers(args, a_map, w_map, layout, block,
               [&] { return PartsScheduler(args, layout.a_bytes / kRowBytes, layout.unit_columns); });
}

// Passes a part's sums to the other warps. The lane has the sums that skinny::Output describes.
template <class T>
__device__ void keep_products(const PartsScheduler::Unit& unit, const float (&sums)[1][4], ExpertProducts& products) {
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (part >= unit.parts) return;
  const int rows = unit.end_of(part) - unit.start_of(part), first = unit.first_row + unit.start_of(part);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i % 2;
    if (row < rows) products.y[first + row][lane / 4 + i / 2 * 8] = to_f32(rounded<T>(sums[0][i]));
  }
}

template <class T>
__device__ void combine_units(const MatmulCombineExpertsArgs& args, const Layout& layout, const Block& block,
                              ExpertProducts& products) {
  const int part = threadIdx.x / 32, box_rows = layout.a_bytes / kRowBytes;
  if (offsets_need_wait(args.product)) pdl_wait();
  PartsScheduler scheduler(args.product, box_rows, kTile);
  PartsScheduler::Unit unit;
  Combination<T> combination(args.combine);
  Turn turn;
  while (scheduler.next(unit)) {
    if (unit.first_row == 0) named_barrier<kSumThreads>();  // others may still read the products of the previous tile
    pdl_wait();
    if (unit.first_row == 0) combination.begin(unit.first_column);
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    // A warp without a part multiplies what is there, and ignores the result.
    const int start = part < unit.parts ? unit.start_of(part) : 0;
    float sums[1][4] = {};
    UnitPieces<T, 1>(layout, block, turn, min(start + row_of_lane<1>(), box_rows - 1)).multiply(sums);
    keep_products<T>(unit, sums, products);
    if (!scheduler.columns_end()) continue;
    named_barrier<kSumThreads>();  // of the warps that multiply
    combination.end(products);
  }
}

}  // namespace

Visible launch_matmul_combine_experts(cudaStream_t stream, const MatmulCombineExpertsArgs& args, DType act) {
  const GemmArgs& product = args.product;
  constexpr int kProducts = static_cast<int>(sizeof(ExpertProducts));
  const Share share = share_of(Kernel::kCombinedProduct, args.combine.tokens).without(kProducts);
  // With more than kRowGroup rows, a box has twice kRowGroup rows: the parts of a unit seldom have more.
  const int box_rows = product.m <= kRowGroup ? kRowGroup : 2 * kRowGroup;
  Layout layout = layout_of(kUnitParts, box_rows, product.k, share);
  layout.box_tiles = 1;
  layout.unit_columns = kTile;
  layout.tile_distance = 0;
  const CUtensorMap a_map = pieces_map(product.a, act, 1, product.m, product.k, box_rows, kDepth, layout.pieces);
  const CUtensorMap w_map =
      pieces_map(product.w.data, act, product.groups, product.n, product.k, kTile, kDepth, layout.pieces);
  const auto blocks =
      std::min<int64_t>(ceil_divide(product.n, kTile), device_attribute(cudaDevAttrMultiProcessorCount));
  with_16_bit_type(act, [&](auto zero) {
    constexpr auto kernel = matmul_combine_experts_kernel<decltype(zero)>;
    allow_shared_bytes<kernel, max_bytes(Kernel::kCombinedProduct) - kProducts>();
    launch_dependent("matmul_combine_experts_kernel", kernel, {blocks, kSumThreads + 32, share.bytes}, stream, a_map,
                     w_map, args, layout);
  });
  return Visible::kBeforeWait;  // if the routing was not, the kernel triggers the next one after its wait
}

}  // namespace lfm2
