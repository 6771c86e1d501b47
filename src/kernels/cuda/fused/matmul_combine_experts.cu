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
#include "kernels/cuda/experts/combine_experts.cuh"
#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/gemm/gemm_skinny_tiles.cuh"

namespace lfm2 {

namespace {

using namespace skinny;

constexpr int kUnitParts = 4, kSumThreads = kUnitParts * 32;  // of a unit; the warps that multiply
constexpr int kMaxRows = kMaxCombinedTokens * kMaxCombinedChoices;
static_assert(kSumThreads == kMaxCombinedTokens * kTile, "a thread combines one channel of one token");
static_assert(kMaxCombinedChoices == kChoices);

// The products of all rows with a tile, as y holds them. Rows are padded so that writes do not conflict in a bank.
struct ExpertProducts {
  float y[kMaxRows][kTile + 4];
};

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

// A unit is the product of up to kUnitParts parts with the same tile of their groups' matrices. A part is up to
// kRowGroup rows of one group. The parts are contiguous in one box of a. Every warp finds the units without the others,
// with a lane for each group.
class PartsScheduler {
 public:
  struct Unit {
    int first_row, rows, first_column, parts;
    uint32_t groups, starts;  // a byte for each part: its group, and its first row, counted from the unit's
    __device__ int tiles(int) const { return parts; }
    __device__ int group_of(int part) const { return byte_of(groups, part); }
    __device__ int start_of(int part) const { return byte_of(starts, part); }
    __device__ int end_of(int part) const { return part + 1 < parts ? start_of(part + 1) : rows; }

   private:
    __device__ static int byte_of(uint32_t word, int i) { return static_cast<int>(word >> (8 * i) & 0xffu); }
  };

  __device__ PartsScheduler(const GemmArgs& args, int rows, int columns)
      : box_rows_(rows),
        columns_(columns),
        n_(static_cast<int>(args.n)),
        column_(static_cast<int>(blockIdx.x) * columns) {
    const int groups = static_cast<int>(args.groups), lane = static_cast<int>(threadIdx.x % 32);
    end_ = __ldcg(args.offsets + min(lane + 1, groups));
    const int first = __shfl_up_sync(kAllLanes, end_, 1);
    parts_ = static_cast<int>(
        __reduce_add_sync(kAllLanes, static_cast<unsigned>(end_ - (lane > 0 ? first : 0) + kRowGroup - 1) / kRowGroup));
    left_ = parts_;
  }

  // Finds the block's next unit: those of its first columns, then those of the next ones. Returns false after the last.
  __device__ bool next(Unit& unit) {
    if (left_ == 0) {
      row_ = 0;
      left_ = parts_;
      column_ += static_cast<int>(gridDim.x) * columns_;
    }
    if (column_ >= n_ || parts_ == 0) return false;
    unit = {row_, 0, column_, 0, 0, 0};
    const int count = next_count();
#pragma unroll
    for (int part = 0; part < kUnitParts; ++part) {
      const unsigned reached = __ballot_sync(kAllLanes, end_ > row_);
      const int group = __ffs(reached) - 1;
      const int rows = min(__shfl_sync(kAllLanes, end_, group & 31) - row_, kRowGroup);
      if (part >= count || unit.rows + rows > box_rows_) break;
      unit.groups |= static_cast<uint32_t>(group) << (8 * part);
      unit.starts |= static_cast<uint32_t>(unit.rows) << (8 * part);
      ++unit.parts;
      unit.rows += rows;
      row_ += rows;
    }
    left_ -= unit.parts;
    return true;
  }
  // Whether the unit that was found last is the last one of its columns.
  __device__ bool columns_end() const { return left_ == 0; }

 private:
  // The number of parts of the next unit, so that the remaining parts spread evenly over as few units as they need: a
  // last unit of one part would take no less time, while memory is idle.
  __device__ int next_count() const {
    const int units = (left_ + kUnitParts - 1) / kUnitParts, missing = units * kUnitParts - left_;
    int count = kUnitParts;
#pragma unroll
    for (int less = 1; less < kUnitParts; ++less) count -= missing >= less * units ? 1 : 0;
    return count;
  }

  int box_rows_, columns_, n_;
  int end_;           // the first row after the lane's group
  int parts_, left_;  // of a tile: all parts, and those that are in no unit yet
  int column_, row_ = 0;
};

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

// A thread's token and channel of a tile: its choices, and its place in the residual.
template <class T>
class Combination {
 public:
  // The routing must be visible.
  __device__ explicit Combination(const CombineExpertsArgs& args)
      : args_(args), token_(static_cast<int>(threadIdx.x) / kTile), own_(static_cast<int>(threadIdx.x) % kTile) {
    if (token_ < args.tokens) choices_ = load_choices(args, token_, 0);
  }
  // Loads the old value.
  __device__ void begin(int column) {
    target_ = static_cast<T*>(args_.residual) + token_ * args_.hidden + column + own_;
    real_ = token_ < args_.tokens && column + own_ < args_.hidden;
    if (real_) old_ = *target_;
  }
  __device__ void end(const ExpertProducts& products) const {
    if (!real_) return;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kChoices; ++j)
      if (j < args_.top_k) sum = add_choice(sum, choices_.weights[j], products.y[choices_.rows[j]][own_]);
    *target_ = rounded<T>(sum + to_f32(old_));
  }

 private:
  const CombineExpertsArgs& args_;
  int token_, own_;
  Choices choices_{};
  T* target_ = nullptr;
  T old_{};
  bool real_ = false;
};

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
