// matmul_combine_experts for fp8 weights with a scale for each row, and so few rows that every block rounds all of them
// itself. A block computes its columns for all experts that have rows, as matmul_combine_experts.cu does; an
// instruction multiplies the tiles of four experts with all rows, of which each expert's products are kept.
//
// The bits are those of quantize, gemm_fp8.cu and combine_experts_kernel, one after the other.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/fused/expert_parts.cuh"
#include "kernels/cuda/fused/few_fp8_rows.h"
#include "kernels/cuda/fused/skinny_fp8.cuh"

namespace lfm2 {

namespace {

using namespace expert_parts;

constexpr Share kShare{kHalf.bytes, true};

template <class T>
__device__ void combine_units(const MatmulCombineExpertsArgs& args, const Layout& layout, const Block& block,
                              const Fp8Rows& rows, ExpertProducts& products);

// - operands: a [m, k] of type T, w [groups, n, k] of fp8 with a scale for each row, and those of
//   combine_experts_kernel, except y; m = tokens top_k, up to kRowGroup, and hidden = n.
// - block: as matmul_combine_experts_kernel.
// - thread: the last warp loads; the others round rows, multiply the four parts of a unit together, and combine one
//   column of one token each (combine_units).
// - alignment: n in octets, k in steps of kFp8KStep, a and w on 16 bytes.
template <class T>
__global__ void __launch_bounds__(kSumThreads + 32, 2)
    matmul_combine_experts_fp8_kernel(const __grid_constant__ CUtensorMap w_map,
                                      const __grid_constant__ MatmulCombineExpertsArgs args,
                                      const __grid_constant__ Layout layout) {
  extern __shared__ char shared[];
  __shared__ ExpertProducts products;
  __shared__ float scales[kRowGroup];
  pdl_trigger_early(args.product, layout);
  const Fp8Rows rows(shared, scales);
  const int64_t k = args.product.k;
  const Block block = start_block(shared + fp8_row_bytes(k), &w_map, &w_map, layout, fp8_words(k));
  if (threadIdx.x / 32 == kUnitParts) {
    load_buffers(
        args.product, &w_map, &w_map, layout, block, [&] { return PartsScheduler(args.product, kRowGroup, kTile); },
        [] {});
  } else {
    combine_units<T>(args, layout, block, rows, products);
  }
}

// Passes a part's products to the other warps. The lane has the sums that skinny::Output describes, of all rows.
template <class T>
__device__ void keep_products(const PartsScheduler::Unit& unit, const float (&sums)[4], ExpertProducts& products) {
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (part >= unit.parts) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i % 2, from_first = row - unit.first_row;
    if (from_first >= unit.start_of(part) && from_first < unit.end_of(part))
      products.y[row][lane / 4 + i / 2 * 8] = to_f32(rounded<T>(sums[i]));
  }
}

template <class T>
__device__ void combine_units(const MatmulCombineExpertsArgs& args, const Layout& layout, const Block& block,
                              const Fp8Rows& rows, ExpertProducts& products) {
  const GemmArgs& product = args.product;
  const int part = threadIdx.x / 32, m = static_cast<int>(product.m), k = static_cast<int>(product.k);
  if (offsets_need_wait(product)) pdl_wait();
  PartsScheduler scheduler(product, kRowGroup, kTile);
  PartsScheduler::Unit unit;
  Combination<T> combination(args.combine);
  pdl_wait();
  for (int row = part; row < m; row += kFp8Warps)
    round_row<T>(rows, row, k, [&](int column) {
      return load_packed(static_cast<const T*>(product.a) + static_cast<int64_t>(row) * k + column, kOctet, true);
    });
  fence_proxy_async();
  named_barrier<kSumThreads>();
  const WgmmaOperand operand(rows.address);
  Turn turn;
  while (scheduler.next(unit)) {
    if (unit.first_row == 0) {
      named_barrier<kSumThreads>();  // others may still read the products of the previous tile
      combination.begin(unit.first_column);
    }
    Fp8Factors factors;
    factors.load(product, part < unit.parts ? unit.group_of(part) : 0, unit.first_column);
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    float sums[1][4] = {};
    multiply_fp8(layout, block, turn, operand, sums);
    factors.scale(rows, sums[0]);
    keep_products<T>(unit, sums[0], products);
    if (!scheduler.columns_end()) continue;
    named_barrier<kSumThreads>();
    combination.end(products);
  }
}

}  // namespace

bool takes_few_fp8_rows(const GemmArgs& product) {
  return product.k % kFp8KStep == 0 && product.k <= kMaxFp8K && product.scales.group == 0 && product.scales.w_rows == 1;
}

Visible launch_matmul_combine_experts_fp8(cudaStream_t stream, const MatmulCombineExpertsArgs& args) {
  static_assert(kUnitParts == kFp8Warps);
  const GemmArgs& product = args.product;
  constexpr int kUsed = static_cast<int>(sizeof(ExpertProducts) + kRowGroup * sizeof(float));
  constexpr Share kOwn = kShare.without(kUsed);
  Layout layout = fp8_layout(kUnitParts, false, product.k, kOwn);
  layout.tile_distance = 0;
  const CUtensorMap w_map =
      pieces_map(product.w.data, DType::kF8, product.groups, product.n, product.k, kTile, kFp8Depth, layout.pieces);
  const auto blocks =
      std::min<int64_t>(ceil_divide(product.n, kTile), device_attribute(cudaDevAttrMultiProcessorCount));
  constexpr auto kernel = matmul_combine_experts_fp8_kernel<__nv_bfloat16>;
  allow_shared_bytes<kernel, kOwn.bytes>();
  launch_dependent("matmul_combine_experts_fp8_kernel", kernel, {blocks, kSumThreads + 32, kOwn.bytes}, stream, w_map,
                   args, layout);
  return Visible::kBeforeWait;  // as launch_matmul_combine_experts
}

}  // namespace lfm2
