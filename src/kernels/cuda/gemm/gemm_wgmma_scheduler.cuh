// Which tiles the thread blocks of gemm_wgmma_kernel.cuh compute, and in which order.
#pragma once

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/gemm/gemm_wgmma.h"

namespace lfm2 {

constexpr int kWgmmaGroupRows = 64;  // rows of a warpgroup
// Rows of a band: its tiles use a piece of w in succession, so that the piece stays in L2.
constexpr int kWgmmaBandRows = 4096;

// What one block computes: a tile, or half of its rows.
struct TileWork {
  int group;
  int first_row, end_row;  // rows of a and out; end_row is the group's end, not the tile's
  int first_column;
  bool half;          // only one of two warpgroups would have rows, so both have them and split the columns
  bool w_read_once;   // the group has no other row tile
  bool same_columns;  // the cluster's other block has the same columns and the next rows, otherwise the next columns
};

// The persistent tile scheduler: the order of the units of work, of which each cluster takes one at a time. Units are
// numbered group by group. A group's pairs of row tiles (without clusters: row tiles) go band by band, then column by
// column, then row by row. One or two row tiles outside the pairs, the singles, belong to the last band; a unit of a
// single has two columns and follows their pairs. So all units that use a piece of w in a band do so at about the same
// time. With clusters, three pairs and one single:
//            column 0   column 1   column 2   column 3
//   pair 0      0          3          7         10
//   pair 1      1          4          8         11
//   pair 2      2          5          9         12
//   single      6 (columns 0, 1)     13 (columns 2, 3)
// Each warp finds its units without the others, by a prefix sum over the groups, of which its lanes hold 32 at a time.
template <WgmmaTile tile>
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const GemmArgs& args)
      : offsets_(args.offsets),
        groups_(static_cast<int>(args.groups)),
        rows_(static_cast<int>(args.m)),
        column_tiles_(static_cast<int>((args.n + tile.columns - 1) / tile.columns)) {
    read_groups();
  }

  // Finds a unit's work for the block `rank` of a cluster; callers ask in rising order. Returns false after the last
  // unit.
  __device__ bool find(int unit, int rank, TileWork& work) {
    while (true) {
      const unsigned reached = __ballot_sync(0xffffffffu, before_ + upto_ > unit);
      if (reached != 0) {
        const int owner = __ffs(reached) - 1;
        const int first = __shfl_sync(0xffffffffu, first_, owner), end = __shfl_sync(0xffffffffu, end_, owner);
        const int previous = __shfl_sync(0xffffffffu, upto_, owner > 0 ? owner - 1 : 0);
        place(unit - before_ - (owner > 0 ? previous : 0), rank, first, end, work);
        work.group = base_ + owner;
        return true;
      }
      before_ += __shfl_sync(0xffffffffu, upto_, 31);
      base_ += 32;
      if (base_ >= groups_) return false;
      read_groups();
    }
  }

 private:
  static constexpr int kCluster = tile.cluster, kPairRows = tile.rows * kCluster;
  static constexpr int kBand = kWgmmaBandRows / kPairRows, kMaxMissing = 31;

  // A pair that would lack more rows than kMaxMissing is not made; its tiles become singles. So do all tiles of which
  // clusters compute the transpose.
  __device__ static int pairs_of(int rows) {
    if (kCluster > 1 && tile.transposed) return 0;
    return (rows + (kCluster == 1 ? tile.rows - 1 : kMaxMissing)) / kPairRows;
  }
  __device__ static int singles_of(int rows, int pairs) {
    const int left = rows - pairs * kPairRows;
    return kCluster == 1 || left <= 0 ? 0 : (left + tile.rows - 1) / tile.rows;
  }

  __device__ void read_groups() {
    const int group = base_ + static_cast<int>(threadIdx.x % 32);
    first_ = end_ = 0;
    if (group < groups_) {
      first_ = offsets_ == nullptr ? 0 : __ldcg(offsets_ + group);
      end_ = offsets_ == nullptr ? rows_ : __ldcg(offsets_ + group + 1);
    }
    const int pairs = pairs_of(end_ - first_);
    upto_ =
        upto(pairs * column_tiles_ + singles_of(end_ - first_, pairs) * ((column_tiles_ + kCluster - 1) / kCluster));
  }

  __device__ void place(int unit, int rank, int first, int end, TileWork& work) const {
    const int pairs = pairs_of(end - first), singles = singles_of(end - first, pairs);
    // Bands as equal as possible: a low band would read all of w for a few rows.
    const int bands = max((pairs + kBand - 1) / kBand, 1), height = (pairs + bands - 1) / bands;
    const int band = min(height == 0 ? 0 : unit / (height * column_tiles_), bands - 1);
    const int in_band = unit - band * height * column_tiles_, rows = min(height, pairs - band * height);
    const int in_columns = kCluster * rows + (band == bands - 1 ? singles : 0);  // units of kCluster column tiles
    const int columns = in_band / in_columns, here = min(kCluster, column_tiles_ - columns * kCluster);
    const int in_place = in_band - columns * in_columns;
    work.same_columns = in_place < here * rows;
    int column_tile = columns * kCluster;
    if (work.same_columns) {
      const int column = in_place / rows;
      column_tile += column;
      work.first_row = first + (band * height + in_place - column * rows) * kPairRows + rank * tile.rows;
    } else {
      column_tile += rank;
      work.first_row = first + pairs * kPairRows + (in_place - here * rows) * tile.rows;
    }
    work.first_column = column_tile * tile.columns;
    work.end_row = end;
    work.half = !tile.transposed && tile.rows > kWgmmaGroupRows && end - work.first_row <= kWgmmaGroupRows &&
                (kCluster == 1 || !work.same_columns);
    work.w_read_once = end - first <= tile.rows;
  }

  const int32_t* offsets_;
  int groups_, rows_, column_tiles_;
  int base_ = 0, before_ = 0;  // the first group that the lanes hold; number of units before it
  int first_ = 0, end_ = 0;    // bounds of the rows of the lane's group
  int upto_ = 0;               // number of units of the lanes' groups, up to this lane's
};

}  // namespace lfm2
