// Which rows and columns the thread blocks of skinny products compute, and in which order.
#pragma once

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/gemm/launch.h"

namespace lfm2::skinny {

constexpr int kRowGroup = 8;  // rows of a, which are the columns of one mma

// What a block computes at a time: the product of layout.tiles tiles of w with `rows` rows of a, at most kRowGroup
// times `groups`.
struct Unit {
  int group, first_row, rows, first_column;
  __device__ int tiles(int all) const { return all; }  // of the `all` tiles of a unit, those that exist
  __device__ int group_of(int) const { return group; }
};

// A persistent tile scheduler: block b computes the units b, b + gridDim.x and so on. Units are numbered group by
// group, then by columns of out, then by rows. Each warp finds its units without the others, by a prefix sum over the
// groups, of which its lanes hold 32 at a time.
class UnitScheduler {
 public:
  using Unit = skinny::Unit;
  __device__ UnitScheduler(const GemmArgs& args, int rows, int columns)
      : offsets_(args.offsets),
        groups_(static_cast<int>(args.groups)),
        m_(static_cast<int>(args.m)),
        rows_(rows),
        columns_(columns),
        across_((static_cast<int>(args.n) + columns - 1) / columns) {
    read_groups();
  }
  // For up to 32 groups, of which each lane knows the bounds of one: first … end.
  __device__ UnitScheduler(const GemmArgs& args, int rows, int columns, int first, int end)
      : offsets_(nullptr),
        groups_(static_cast<int>(args.groups)),
        m_(static_cast<int>(args.m)),
        rows_(rows),
        columns_(columns),
        across_((static_cast<int>(args.n) + columns - 1) / columns),
        first_(first),
        end_(end) {
    count_units();
  }

  // Finds the block's next unit. Returns false after the last one.
  __device__ bool next(Unit& unit) {
    const bool found = find(index_, unit);
    index_ += static_cast<int>(gridDim.x);
    return found;
  }

 private:
  // Finds unit `index`; called in rising order.
  __device__ bool find(int index, Unit& unit) {
    while (true) {
      const unsigned reached = __ballot_sync(kAllLanes, before_ + upto_ > index);
      if (reached != 0) {
        const int owner = __ffs(reached) - 1;
        const int first = __shfl_sync(kAllLanes, first_, owner), end = __shfl_sync(kAllLanes, end_, owner);
        const int previous = __shfl_sync(kAllLanes, upto_, owner > 0 ? owner - 1 : 0);
        const int local = index - before_ - (owner > 0 ? previous : 0), parts = (end - first + rows_ - 1) / rows_;
        const int column = local / parts;
        unit.group = base_ + owner;
        unit.first_row = first + (local - column * parts) * rows_;
        unit.rows = min(rows_, end - unit.first_row);
        unit.first_column = column * columns_;
        return true;
      }
      before_ += __shfl_sync(kAllLanes, upto_, 31);
      base_ += 32;
      if (base_ >= groups_) return false;
      read_groups();
    }
  }

  __device__ void read_groups() {
    const int group = base_ + static_cast<int>(threadIdx.x % 32);
    first_ = end_ = 0;
    if (group < groups_) {
      first_ = offsets_ == nullptr ? 0 : __ldcg(offsets_ + group);
      end_ = offsets_ == nullptr ? m_ : __ldcg(offsets_ + group + 1);
    }
    count_units();
  }

  __device__ void count_units() { upto_ = upto((end_ - first_ + rows_ - 1) / rows_ * across_); }

  const int32_t* offsets_;
  int groups_, m_, rows_, columns_, across_;
  int index_ = static_cast<int>(blockIdx.x);
  int base_ = 0, before_ = 0;  // the first group that the lanes hold; number of units before it
  int first_ = 0, end_ = 0;    // bounds of the rows of the lane's group
  int upto_ = 0;               // number of units of the lanes' groups, up to this lane's
};

}  // namespace lfm2::skinny
