// What the kernels share that compute a skinny grouped product and the weighted sum of the experts: the units of a
// block, the products that it keeps, and the sum. For matmul_combine_experts.cu, and, in fp8,
// matmul_combine_experts_fp8.cu.
#pragma once

#include "kernels/cuda/experts/combine_experts.cuh"
#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/gemm/gemm_skinny_tiles.cuh"

namespace lfm2::expert_parts {

using namespace skinny;

constexpr int kUnitParts = 4, kSumThreads = kUnitParts * 32;  // of a unit; the warps that multiply
constexpr int kMaxRows = kMaxCombinedTokens * kMaxCombinedChoices;
static_assert(kSumThreads == kMaxCombinedTokens * kTile, "a thread combines one channel of one token");
static_assert(kMaxCombinedChoices == kChoices);

// The products of all rows with a tile, as y holds them. Rows are padded so that writes do not conflict in a bank.
struct ExpertProducts {
  float y[kMaxRows][kTile + 4];
};

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

}  // namespace lfm2::expert_parts
