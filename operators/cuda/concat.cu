// concat and its gradient: one launch for up to kMaxParts tensors. A thread owns units of 16 bytes of the output (the
// whole or the parts) and gathers them from the input, whatever its alignment. If many rows end within units, it
// gathers them from shared memory.
#include "operators/cuda/concat_staged.cuh"

namespace lfm2::operators::gpu {

namespace {

template <bool kWhole>
constexpr int kSteps = kWhole ? 4 : 2;  // number of units of a thread
constexpr int kFewParts = 32;           // makes a small parameter block for the usual case
constexpr int kMaxParts = 1024;         // makes 24 KiB of parameters

template <class T>
struct Runs;
template <class T, class Index>
__device__ bool inside(Index place, Index elements);
template <class Index>
struct PartPosition;

// - operands: parts [outer, length] of each part; out whole [outer, whole_row], of whose rows table.row elements
//   from table.first on are written.
// - block: kThreads units in kSteps steps.
// - thread: kSteps units of 16 bytes of what is written, kThreads apart, all of whose loads are under way before one
//   is used.
// - alignment: any; kWhole: every run and every tensor consists of units of memory. Index: uint32_t for fewer than
//   2^31 elements.
template <class T, int kParts, bool kWhole, class Index>
__global__ void __launch_bounds__(kThreads) join_kernel(const __grid_constant__ Table<T, kParts> table) {
  constexpr int kOwn = kSteps<kWhole>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kOwn * kThreads) + threadIdx.x;
  const int64_t row = table.row.divisor, elements = table.outer * row;
  const auto find = [&](int64_t element) {
    PartPosition<Index> place;
    place.outer = table.row.quotient(static_cast<Index>(element));
    place.column = static_cast<Index>(element) - place.outer * static_cast<Index>(row);
    place.enter(table, search(table.ends, table.count, place.column));
    return place;
  };
  std::conditional_t<kWhole, Unit<T>, Runs<T>> units[kOwn];
#pragma unroll
  for (int step = 0; step < kOwn; ++step) {
    const int64_t element = (first + step * kThreads) * kUnit<T>;
    if constexpr (kWhole) {
      if (element >= elements) continue;
      const PartPosition<Index> place = find(element);
      units[step].bits = *reinterpret_cast<const uint4*>(table.parts[place.part] + place.in_part());
    } else {
      units[step].left = 0;
      if (element + kUnit < T >> elements) continue;
      PartPosition<Index> place = find(element);
      // Loads elements `from` to `to` of the unit. Element `from` lies at the place.
      const auto fetch = [&](Shifted<T>& run, int from, int to) {
        const Index begin = place.in_part();
        run.fetch(table.parts[place.part] + begin - from, from, to,
                  inside<T>(static_cast<Index>(begin - from), static_cast<Index>(table.counts[place.part])));
      };
      const auto left = static_cast<int>(min(place.end - place.column, Index{kUnit<T>}));
      units[step].left = left;
      fetch(units[step].first, 0, left);
      if (left == kUnit<T>) continue;
      place.column = place.end - 1;
      place.step(table);
      if (place.end - place.begin >= static_cast<Index>(kUnit<T> - left))
        fetch(units[step].second, left, kUnit<T>);
      else
        units[step].left = 0;
    }
  }
#pragma unroll
  for (int step = 0; step < kOwn; ++step) {
    const int64_t element = (first + step * kThreads) * kUnit<T>;
    if (element >= elements) return;
    if constexpr (kWhole) {
      *reinterpret_cast<uint4*>(table.whole + element) = units[step].bits;
      continue;
    } else {
      Unit<T> unit;
      if (units[step].left > 0) {
        unit = units[step].get();
      } else {
        PartPosition<Index> place = find(element);
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i) {
          if (element + i >= elements) continue;
          unit.elements[i] = table.parts[place.part][place.in_part()];
          place.step(table);
        }
      }
      if (table.dense && element + kUnit<T> <= elements) {
        *reinterpret_cast<uint4*>(table.whole + element) = unit.bits;
        continue;
      }
      int64_t outer = table.row.quotient(static_cast<Index>(element)), column = element - outer * row;
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) {
        if (element + i >= elements) continue;
        table.whole[outer * table.whole_row + table.first + column] = unit.elements[i];
        if (++column == row) column = 0, ++outer;
      }
    }
  }
}

// A unit across two runs: the first `count` elements of `first`, then those of `second` from number `count` on.
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

// A unit whose first `left` elements lie in one run and the others in a second run. `left` is 0 if it spans more runs.
template <class T>
struct Runs {
  Shifted<T> first, second;
  int left;

  __device__ Unit<T> get() const {
    const Unit<T> unit = first.get(0, left);
    return left == kUnit<T> ? unit : spliced(unit, second.get(left, kUnit<T>), left);
  }
};
// Whether `place` is far enough from both ends of `elements` for the units of memory around it to be inside.
template <class T, class Index>
__device__ bool inside(Index place, Index elements) {
  return place >= Index{kUnit<T>} && place < elements && elements - place >= Index{2 * kUnit<T>};
}

// A position in a row of the whole, and in the part to which it belongs.
template <class Index>
struct PartPosition {
  Index outer;
  int part;
  Index begin, column, end;  // the part's bounds in the row

  template <class T, int kParts>
  __device__ void enter(const Table<T, kParts>& table, int new_part) {
    part = new_part;
    begin = part > 0 ? static_cast<Index>(table.ends[part - 1]) : 0;
    end = static_cast<Index>(table.ends[part]);
  }
  template <class T, int kParts>
  __device__ void step(const Table<T, kParts>& table) {
    if (++column < end) return;
    if (part + 1 < table.count) return enter(table, part + 1);
    ++outer;
    column = 0;
    enter(table, 0);
  }
  __device__ Index in_part() const { return outer * (end - begin) + (column - begin); }
};

// A unit of a part that is being loaded from the whole. kWhole has the meaning that it has for join_kernel.
template <class T, bool kWhole, class Index>
struct PartUnit {
  std::conditional_t<kWhole, Unit<T>, Runs<T>> unit;
  T* target;
  const T* source;       // where the unit's first element is in the whole
  Index column, length;  // the first element's column in the part's row; the length of that row
  int count;             // number of elements; 0: there is no such unit

  // Loads unit `ordinal` of all parts, counted part after part. Nothing here waits for a load.
  template <int kParts>
  __device__ __forceinline__ void fetch(const Table<T, kParts>& table, int64_t ordinal) {
    count = 0;
    if (ordinal >= table.units) return;
    const int part = search(table.counts, table.count, static_cast<Index>(ordinal));
    const Index begin = part > 0 ? static_cast<Index>(table.ends[part - 1]) : 0;
    length = static_cast<Index>(table.ends[part]) - begin;
    const Index in_part = static_cast<Index>(ordinal) - (part > 0 ? static_cast<Index>(table.counts[part - 1]) : 0);
    const Index element = in_part * kUnit<T>, outer = element / length;
    column = element - outer * length;
    target = table.parts[part] + element;
    count = static_cast<int>(min(static_cast<Index>(table.outer) * length - element, Index{kUnit<T>}));
    const Index whole_row = static_cast<Index>(table.whole_row);
    const Index from = outer * whole_row + static_cast<Index>(table.first) + begin + column;
    source = table.whole + from;
    if constexpr (kWhole) {
      unit.bits = *reinterpret_cast<const uint4*>(source);
    } else {
      const auto here = static_cast<int>(min(length - column, Index{kUnit<T>}));
      unit.left = 0;
      if (count == kUnit<T> && here + length >= Index{kUnit<T>}) {
        const Index elements = static_cast<Index>(table.outer) * whole_row;
        unit.left = here;
        unit.first.fetch(source, 0, here, inside<T>(from, elements));
        if (here < kUnit<T>) {  // the next row's elements, after those of other parts
          const Index rest = from + (whole_row - length);
          unit.second.fetch(table.whole + rest, here, kUnit<T>, inside<T>(rest, elements));
        }
      }
    }
  }
  // Whether the target is one unit of memory.
  __device__ __forceinline__ bool aligned() const {
    return kWhole || (count == kUnit<T> && reinterpret_cast<uintptr_t>(target) % 16 == 0);
  }
  __device__ __forceinline__ Unit<T> get(Index whole_row) const {
    if constexpr (kWhole) {
      return unit;
    } else {
      if (unit.left > 0) return unit.get();
      Unit<T> result;  // element by element, where there are more than two runs or an end
      const T* from = source;
      Index at = column;
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i) {
        if (i >= count) continue;
        result.elements[i] = *from;
        ++from;
        if (++at == length) at = 0, from += whole_row - length;
      }
      return result;
    }
  }
};

// - operands: whole [outer, whole_row], of whose rows table.row elements from table.first on are cut into the parts
//   [outer, length], which are written or, with `add`, added to.
// - block: kThreads units in kSteps steps.
// - thread: kSteps units of 16 bytes of the parts, kThreads apart, all of whose loads are under way before one is
//   used.
// - alignment: any; kWhole and Index: as for join_kernel.
template <class T, int kParts, bool kWhole, bool add, class Index>
__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ Table<T, kParts> table) {
  constexpr int kOwn = kSteps<kWhole>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kOwn * kThreads) + threadIdx.x;
  PartUnit<T, kWhole, Index> units[kOwn];
  Unit<T> sums[kOwn];
#pragma unroll
  for (int step = 0; step < kOwn; ++step) {
    units[step].fetch(table, first + step * kThreads);
    if constexpr (add)
      if (units[step].count > 0 && units[step].aligned())
        sums[step].bits = *reinterpret_cast<const uint4*>(units[step].target);
  }
#pragma unroll
  for (int step = 0; step < kOwn; ++step) {
    const int count = units[step].count;
    T* const target = units[step].target;
    if (count == 0) return;
    Unit<T> unit = units[step].get(static_cast<Index>(table.whole_row));
    if constexpr (add) {
      if (!units[step].aligned()) {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i)
          if (i < count) sums[step].elements[i] = target[i];
      }
      add_unit(sums[step], unit);
    }
    if (units[step].aligned()) {
      *reinterpret_cast<uint4*>(target) = unit.bits;
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i)
        if (i < count) target[i] = unit.elements[i];
    }
  }
}

template <ConcatWay way, class T, int kParts>
Status launch_staged(const Table<T, kParts>& table, void* stream) {
  const auto shared_bytes = static_cast<size_t>(table.own_units.divisor * table.row.divisor * 16);
  const auto start = [&](auto kernel) {
    return launch_with_shared(kernel, ceil_divide(table.outer, table.rows), kThreads, shared_bytes, stream, table);
  };
  if constexpr (way == ConcatWay::kJoin)
    return start(staged_join_kernel<T, kParts>);
  else
    return start(staged_split_kernel<T, kParts, way == ConcatWay::kSplitAdd>);
}

template <ConcatWay way, class T, int kParts, bool kWhole>
Status launch_table(const Table<T, kParts>& table, void* stream) {
  const auto start = [&](auto if_small, auto if_large) {
    return launch(table.outer * table.whole_row < kSmall ? if_small : if_large,
                  ceil_divide(table.units, int64_t{kThreads} * kSteps<kWhole>), kThreads, stream, table);
  };
  if constexpr (way == ConcatWay::kJoin)
    return start(join_kernel<T, kParts, kWhole, uint32_t>, join_kernel<T, kParts, kWhole, int64_t>);
  else
    return start(split_kernel<T, kParts, kWhole, way == ConcatWay::kSplitAdd, uint32_t>,
                 split_kernel<T, kParts, kWhole, way == ConcatWay::kSplitAdd, int64_t>);
}

// Launches for parts first_part to end_part - 1, whose row begins at `first` in the whole's row. Advances `first` past
// them.
template <ConcatWay way, class T, int kParts>
Status launch_parts(const ConcatArgs& args, int64_t first_part, int64_t end_part, int64_t& first, void* stream) {
  Table<T, kParts> table{};
  int64_t end = 0, units = 0;
  bool whole = on_bytes(args.whole, 16);
  for (int64_t i = first_part; i < end_part; ++i) {
    const int64_t length = args.parts[i].dim(args.axis) * args.inner;
    if (length == 0) continue;
    end += length;
    units += ceil_divide(args.outer * length, kUnit<T>);
    whole = whole && length % kUnit<T> == 0 && on_bytes(args.parts[i].data, 16);
    table.parts[table.count] = static_cast<T*>(args.parts[i].data);
    table.ends[table.count] = end;
    table.counts[table.count++] = way == ConcatWay::kJoin ? args.outer * length : units;
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
  whole = whole && end == args.row;
  // Joining fp32 elements is as fast without shared memory.
  if (!whole && (sizeof(T) == 2 || way != ConcatWay::kJoin)) table.rows = staged_rows(table, way);
  table.own_units = Divider(table.rows / kUnit<T>);
  if (table.rows > 0) return launch_staged<way>(table, stream);
  return whole ? launch_table<way, T, kParts, true>(table, stream) : launch_table<way, T, kParts, false>(table, stream);
}

template <ConcatWay way, class T>
Status run(const ConcatArgs& args, void* stream) {
  int64_t first = 0;
  if (args.count <= kFewParts) return launch_parts<way, T, kFewParts>(args, 0, args.count, first, stream);
  for (int64_t part = 0; part < args.count; part += kMaxParts) {
    const int64_t end = std::min<int64_t>(part + kMaxParts, args.count);
    STATUS_CHECK((launch_parts<way, T, kMaxParts>(args, part, end, first, stream)));
  }
  return Status::kOk;
}

}  // namespace

Status concat(const ConcatArgs& args, ConcatWay way, void* stream) {
  const OnDevice on_device(args.device);
  STATUS_CHECK(on_device.status());
  switch (way) {
    case ConcatWay::kJoin:
      // Elements of 4 bytes are joined as float, because the compiler makes slower code with uint32_t.
      return args.dtype == DType::kF32 ? run<ConcatWay::kJoin, float>(args, stream)
                                       : run<ConcatWay::kJoin, uint16_t>(args, stream);
    case ConcatWay::kSplitOverwrite:
      return with_bits(args.dtype,
                       [&](auto zero) { return run<ConcatWay::kSplitOverwrite, decltype(zero)>(args, stream); });
    case ConcatWay::kSplitAdd:
      break;
  }
  return with_device_type(args.dtype,
                          [&](auto zero) { return run<ConcatWay::kSplitAdd, decltype(zero)>(args, stream); });
}

}  // namespace lfm2::operators::gpu
