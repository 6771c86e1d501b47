// concat and its gradient: one kernel each, one launch for up to kMostParts tensors. Threads own units of 16 bytes of
// what is written, the whole or the parts, and gather them from what is read, whatever its alignment.
#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kSteps = 4;         // units of a thread
constexpr int kFewParts = 32;     // a small parameter block for the usual case
constexpr int kMostParts = 1024;  // 24 KiB of parameters

// Some of the parts: their row is `row` elements of the whole's `whole_row`, from `first` on. None is empty.
template <class T, int kParts>
struct Table {
  T* whole;
  int64_t outer, whole_row, first;
  Divider row;
  int count;
  bool dense;     // row is whole_row, and the whole on 16 bytes: units of the whole are units of memory
  int64_t units;  // to write
  T* parts[kParts];
  int64_t ends[kParts];       // of each part in the row
  int64_t unit_ends[kParts];  // split: of each part among the units
};

// The first of `ends` behind `place`.
template <int kParts>
__device__ int search(const int64_t (&ends)[kParts], int count, int64_t place) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (place < ends[middle])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// `first` where it begins, the elements of `second` from number `count` on: a unit across two runs.
template <class T>
__device__ Unit<T> spliced(const Unit<T>& first, const Unit<T>& second, int count) {
  constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
  Unit<T> unit;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int there = count - word * kInWord;  // elements of this word from `first`
    const uint32_t mask = there >= kInWord ? 0xffffffffu : there <= 0 ? 0u : 0xffffu;
    unit.words[word] = (first.words[word] & mask) | (second.words[word] & ~mask);
  }
  return unit;
}

// A place in a row of the whole and in its part.
struct Place {
  int64_t outer;
  int part;
  int64_t begin, column, end;  // the part's bounds in the row

  template <class T, int kParts>
  __device__ void enter(const Table<T, kParts>& table, int new_part) {
    part = new_part;
    begin = part > 0 ? table.ends[part - 1] : 0;
    end = table.ends[part];
  }
  template <class T, int kParts>
  __device__ void step(const Table<T, kParts>& table) {
    if (++column < end) return;
    if (part + 1 < table.count) return enter(table, part + 1);
    ++outer;
    column = 0;
    enter(table, 0);
  }
  template <class T, int kParts>
  __device__ T* in_part(const Table<T, kParts>& table) const {
    return table.parts[part] + outer * (end - begin) + (column - begin);
  }
};

template <class T, int kParts>
__global__ void __launch_bounds__(kThreads) join_kernel(const __grid_constant__ Table<T, kParts> table) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kSteps * kThreads) + threadIdx.x;
  const int64_t row = table.row.divisor, elements = table.outer * row;
  Unit<T> units[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t element = (first + step * kThreads) * kUnit<T>;
    if (element >= elements) continue;
    Place place;
    place.outer = table.row.quotient(element);
    place.column = element - place.outer * row;
    place.enter(table, search(table.ends, table.count, place.column));
    const auto left = static_cast<int>(min(place.end - place.column, static_cast<int64_t>(kUnit<T>)));
    const T* const part = table.parts[place.part];
    const T* const part_end = part + table.outer * (place.end - place.begin);
    const T* const from = place.in_part(table);
    if (left == kUnit<T>) {
      units[step] = gather<T>(from, part, part_end);
      continue;
    }
    Place next = place;
    next.column = place.end - 1;
    next.step(table);
    if (next.outer < table.outer && next.end - next.begin >= kUnit<T>) {  // the rest lies in one run
      const T* const other = table.parts[next.part];
      const T* const other_end = other + table.outer * (next.end - next.begin);
      const T* const rest = next.in_part(table) - left;
      if (from + kUnit<T> <= part_end && rest >= other) {
        units[step] = spliced(gather<T>(from, part, part_end), gather<T>(rest, other, other_end), left);
        continue;
      }
    }
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      if (element + i >= elements) continue;
      units[step].elements[i] = *place.in_part(table);
      place.step(table);
    }
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t element = (first + step * kThreads) * kUnit<T>;
    if (element >= elements) return;
    if (table.dense && element + kUnit<T> <= elements) {
      *reinterpret_cast<uint4*>(table.whole + element) = units[step].bits;
      continue;
    }
    int64_t outer = table.row.quotient(element), column = element - outer * row;
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      if (element + i >= elements) continue;
      table.whole[outer * table.whole_row + table.first + column] = units[step].elements[i];
      if (++column == row) column = 0, ++outer;
    }
  }
}

// Units of the parts, one part behind the other. add: what is there is added to.
template <class T, int kParts, bool add>
__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ Table<T, kParts> table) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kSteps * kThreads) + threadIdx.x;
  const T* const whole_end = table.whole + table.outer * table.whole_row;
  Unit<T> units[kSteps], sums[kSteps];
  T* targets[kSteps];
  int counts[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t ordinal = first + step * kThreads;
    counts[step] = 0;
    if (ordinal >= table.units) continue;
    const int part = search(table.unit_ends, table.count, ordinal);
    const int64_t begin = part > 0 ? table.ends[part - 1] : 0, length = table.ends[part] - begin;
    const int64_t element = (ordinal - (part > 0 ? table.unit_ends[part - 1] : 0)) * kUnit<T>;
    const int64_t left = table.outer * length - element;
    targets[step] = table.parts[part] + element;
    counts[step] = static_cast<int>(min(left, static_cast<int64_t>(kUnit<T>)));
    int64_t outer, column;
    if (element < (int64_t{1} << 32) && length < (int64_t{1} << 32)) {
      outer = static_cast<uint32_t>(element) / static_cast<uint32_t>(length);
    } else {
      outer = element / length;
    }
    column = element - outer * length;
    const T* from = table.whole + outer * table.whole_row + table.first + begin + column;
    const T* const rest = from + table.whole_row - length;  // of the unit's elements behind the row's end
    if (column + kUnit<T> <= length) {
      units[step] = gather<T>(from, table.whole, whole_end);
    } else if (counts[step] == kUnit<T> && length >= kUnit<T> && from + kUnit<T> <= whole_end) {
      units[step] = spliced(gather<T>(from, table.whole, whole_end), gather<T>(rest, table.whole, whole_end),
                            static_cast<int>(length - column));
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) {
        if (i >= counts[step]) continue;
        units[step].elements[i] = *from;
        ++from;
        if (++column == length) column = 0, from += table.whole_row - length;
      }
    }
    if constexpr (add) {
      if (counts[step] == kUnit<T> && reinterpret_cast<uintptr_t>(targets[step]) % 16 == 0) {
        sums[step].bits = *reinterpret_cast<const uint4*>(targets[step]);
      } else {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i)
          if (i < counts[step]) sums[step].elements[i] = targets[step][i];
      }
    }
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (counts[step] == 0) return;
    if constexpr (add) {
      float x[kUnit<T>], y[kUnit<T>];
      unpack(units[step], x);
      unpack(sums[step], y);
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) x[i] = y[i] + x[i];
      pack(x, units[step]);
    }
    if (counts[step] == kUnit<T> && reinterpret_cast<uintptr_t>(targets[step]) % 16 == 0) {
      *reinterpret_cast<uint4*>(targets[step]) = units[step].bits;
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i)
        if (i < counts[step]) targets[step][i] = units[step].elements[i];
    }
  }
}

// Parts first_part to end_part - 1, whose row begins at `first` in the whole's; moves `first` behind them.
template <class T, int kParts>
Status launch_parts(const ConcatArgs& args, ConcatWay way, int64_t first_part, int64_t end_part, int64_t& first,
                    void* stream) {
  Table<T, kParts> table{};
  int64_t end = 0, units = 0;
  for (int64_t i = first_part; i < end_part; ++i) {
    const int64_t length = args.parts[i].dim(args.axis) * args.inner;
    if (length == 0) continue;
    end += length;
    units += ceil_divide(args.outer * length, kUnit<T>);
    table.parts[table.count] = static_cast<T*>(args.parts[i].data);
    table.ends[table.count] = end;
    table.unit_ends[table.count++] = units;
  }
  if (end == 0) return Status::kOk;
  table.whole = static_cast<T*>(args.whole);
  table.outer = args.outer;
  table.whole_row = args.row;
  table.first = first;
  table.row = Divider(end);
  table.dense = end == args.row && on_bytes(args.whole, 16);
  table.units = way == ConcatWay::kJoin ? ceil_divide(args.outer * end, kUnit<T>) : units;
  first += end;
  const auto kernel = way == ConcatWay::kJoin       ? join_kernel<T, kParts>
                      : way == ConcatWay::kSplitAdd ? split_kernel<T, kParts, true>
                                                    : split_kernel<T, kParts, false>;
  return launch(kernel, ceil_divide(table.units, int64_t{kThreads} * kSteps), kThreads, stream, table);
}

}  // namespace

Status concat(const ConcatArgs& args, ConcatWay way, void* stream) {
  const OnDevice on_device(args.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    int64_t first = 0;
    if (args.count <= kFewParts) return launch_parts<T, kFewParts>(args, way, 0, args.count, first, stream);
    for (int64_t part = 0; part < args.count; part += kMostParts) {
      const int64_t end = std::min<int64_t>(part + kMostParts, args.count);
      STATUS_CHECK((launch_parts<T, kMostParts>(args, way, part, end, first, stream)));
    }
    return Status::kOk;
  });
}

}  // namespace lfm2::operators::gpu
