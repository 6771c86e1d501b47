// The constants that concat's kernels share, and the kernels for rows that end within units of 16 bytes. In every
// tensor, kUnit rows make whole units. So a block reads a multiple of kUnit rows into shared memory in units, assembles
// the result's units there and writes them.
#pragma once

#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

constexpr int kThreads = 256;
constexpr int64_t kStagedUnits = 8 * kThreads;  // number of units that a block reads into shared memory
// The largest number of units in kUnit rows for which a gradient uses shared memory, although it exceeds kStagedUnits:
// three blocks still fit on an SM. Longer rows, and long rows of fp32, are as fast without shared memory. So is concat
// itself, which waits for fewer bytes.
template <class T>
constexpr int64_t kMaxStagedUnits = sizeof(T) == 2 ? 72 * 1024 / 16 : kStagedUnits;

// Some of the parts. Their row has `row` of the `whole_row` elements of the whole tensor's row, beginning at `first`.
// No part is empty.
template <class T, int kParts>
struct Table {
  T* whole;
  int64_t outer, whole_row, first;
  Divider row;
  int count;
  bool dense;         // row equals whole_row and the whole is aligned to 16 bytes, so its units are units of memory
  int64_t units;      // number of units to write
  int rows = 0;       // rows of the whole that a block stages in shared memory, a multiple of kUnit; 0: none
  Divider own_units;  // if rows > 0, the number of units of one column of these rows
  T* parts[kParts];
  int64_t ends[kParts];    // the column of the row where each part ends
  int64_t counts[kParts];  // join: elements of each part; split: units up to the end of each part
};

// The index of the first of `ends` that is beyond `place`. Index is uint32_t if no value reaches 2^31.
template <class Index, int kParts>
__device__ int search(const int64_t (&ends)[kParts], int count, Index place) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (place < static_cast<Index>(ends[middle]))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Starts to copy the unit at `from` to shared memory. Only `count` of its elements exist.
template <class T>
__device__ void stage_unit(const T* from, int count, uint4* staged) {
  if (count >= kUnit<T>) return copy_unit(staged, from);
  for (int i = 0; i < count; ++i) reinterpret_cast<T*>(staged)[i] = from[i];
}
template <class T>
__device__ void store_unit(T* to, const Unit<T>& unit, int count) {
  if (count >= kUnit<T>) {
    *reinterpret_cast<uint4*>(to) = unit.bits;
  } else {
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i)
      if (i < count) to[i] = unit.elements[i];
  }
}
// unit = sum + unit, rounded.
template <class T>
__device__ __forceinline__ void add_unit(const Unit<T>& sum, Unit<T>& unit) {
  float x[kUnit<T>], y[kUnit<T>];
  unpack(unit, x);
  unpack(sum, y);
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) x[i] = y[i] + x[i];
  pack(x, unit);
}
// Gathers kUnit elements into a unit: the first `left` from `first`, the rest from `second`, each at its position in
// the unit.
template <class T>
__device__ Unit<T> gathered(const T* first, const T* second, int left) {
  Unit<T> unit;
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) unit.elements[i] = (i < left ? first : second)[i];
  return unit;
}

// A part of the staged rows: its columns, and the number of its first unit among the units of all parts.
struct Slice {
  int part, begin, length, first_unit;

  template <class T, int kParts>
  __device__ static Slice of_column(const Table<T, kParts>& table, int column) {
    return of_part(table, search(table.ends, table.count, static_cast<uint32_t>(column)));
  }
  template <class T, int kParts>
  __device__ static Slice of_part(const Table<T, kParts>& table, int part) {
    const int begin = part > 0 ? static_cast<int>(table.ends[part - 1]) : 0;
    return {part, begin, static_cast<int>(table.ends[part]) - begin, begin * static_cast<int>(table.own_units.divisor)};
  }
};

// For concat where rows end within units of memory. No part's row may be shorter than a unit.
// - operands: parts [outer, length] of each part; out whole [outer, row].
// - block: table.rows rows of the whole. It copies the rows of all parts to shared memory in units, one part after
//   another, and assembles units of the whole there.
// - thread: units, kThreads apart.
// - alignment: the whole and every part on 16 bytes.
template <class T, int kParts>
__global__ void __launch_bounds__(kThreads) staged_join_kernel(const __grid_constant__ Table<T, kParts> table) {
  extern __shared__ uint4 staged[];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * table.rows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(table.rows), table.outer - first_row));
  const int row = static_cast<int>(table.row.divisor), units = static_cast<int>(table.own_units.divisor) * row;
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kThreads) {
    const Slice slice =
        Slice::of_column(table, static_cast<int>(table.own_units.quotient(static_cast<uint32_t>(unit))));
    const int element = (unit - slice.first_unit) * kUnit<T>;
    stage_unit(table.parts[slice.part] + first_row * slice.length + element, rows * slice.length - element,
               staged + unit);
  }
  wait_for_copies();
  __syncthreads();
  const T* const elements = reinterpret_cast<const T*>(staged);
  T* const target = table.whole + first_row * row;
  for (int element = static_cast<int>(threadIdx.x) * kUnit<T>; element < rows * row; element += kThreads * kUnit<T>) {
    const int outer = static_cast<int>(table.row.quotient(static_cast<uint32_t>(element)));
    const int column = element - outer * row;
    const Slice slice = Slice::of_column(table, column);
    const bool last = slice.part + 1 == table.count;
    const Slice next = Slice::of_part(table, last ? 0 : slice.part + 1);
    const int left = slice.begin + slice.length - column;
    const T* first = elements + slice.first_unit * kUnit<T> + outer * slice.length + (column - slice.begin);
    const T* second = elements + next.first_unit * kUnit<T> + (last ? outer + 1 : outer) * next.length - left;
    store_unit(target + element, gathered(first, second, left), rows * row - element);
  }
}

// The gradient: copies the whole's rows to the parts.
// - operands: whole [outer, row]; out parts [outer, length] of each part; with `add`, adds to the parts.
// - block: table.rows rows of the whole, which it stages in shared memory in units.
// - thread: units of the parts, kThreads apart, kOwn of them in flight.
// - alignment: the whole and every part on 16 bytes.
template <class T, int kParts, bool add>
__global__ void __launch_bounds__(kThreads) staged_split_kernel(const __grid_constant__ Table<T, kParts> table) {
  constexpr int kOwn = 4;  // number of units that are loaded at once
  extern __shared__ uint4 staged[];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * table.rows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(table.rows), table.outer - first_row));
  const int row = static_cast<int>(table.row.divisor), units = static_cast<int>(table.own_units.divisor) * row;
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kThreads)
    stage_unit(table.whole + first_row * row + unit * kUnit<T>, rows * row - unit * kUnit<T>, staged + unit);
  wait_for_copies();
  __syncthreads();
  for (int begin = static_cast<int>(threadIdx.x); begin < units; begin += kOwn * kThreads) {
    T* targets[kOwn];
    const T* from[kOwn];
    int counts[kOwn], left[kOwn], gap[kOwn];
    Unit<T> sums[kOwn];
#pragma unroll
    for (int step = 0; step < kOwn; ++step) {
      const int unit = begin + step * kThreads;
      counts[step] = 0;
      if (unit >= units) continue;
      const Slice slice =
          Slice::of_column(table, static_cast<int>(table.own_units.quotient(static_cast<uint32_t>(unit))));
      const int element = (unit - slice.first_unit) * kUnit<T>, outer = element / slice.length;
      const int column = element - outer * slice.length;
      counts[step] = rows * slice.length - element;
      targets[step] = table.parts[slice.part] + first_row * slice.length + element;
      from[step] = reinterpret_cast<const T*>(staged) + outer * row + slice.begin + column;
      left[step] = slice.length - column;
      gap[step] = row - slice.length;
      if constexpr (add) {
        if (counts[step] >= kUnit<T>) {
          sums[step].bits = *reinterpret_cast<const uint4*>(targets[step]);
        } else {
#pragma unroll
          for (int i = 0; i < kUnit<T>; ++i)
            if (i < counts[step]) sums[step].elements[i] = targets[step][i];
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kOwn; ++step) {
      if (counts[step] <= 0) continue;
      Unit<T> unit = gathered(from[step], from[step] + gap[step], left[step]);
      if constexpr (add) add_unit(sums[step], unit);
      store_unit(targets[step], unit, counts[step]);
    }
  }
}

// The number of rows of a block; 0 if rows are too long or a part is too short. Few rows are distributed over many
// blocks.
template <class T, int kParts>
int staged_rows(const Table<T, kParts>& table, ConcatWay way) {
  constexpr int64_t kBlocks = 256;
  const int64_t row = table.row.divisor;
  if (!table.dense || row > (way == ConcatWay::kJoin ? kStagedUnits : kMaxStagedUnits<T>)) return 0;
  for (int part = 0; part < table.count; ++part)
    if (table.ends[part] - (part > 0 ? table.ends[part - 1] : 0) < kUnit<T> || !on_bytes(table.parts[part], 16))
      return 0;
  const int64_t most = std::max<int64_t>(1, kStagedUnits / row);
  return kUnit<T> * static_cast<int>(std::min(most, ceil_divide(table.outer, kBlocks * kUnit<T>)));
}

}  // namespace lfm2::operators::gpu
