// concat and its gradient: one kernel, one launch for up to kMostParts tensors.
#include "operators/cuda/launch.cuh"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kSteps = 4;         // units of a thread
constexpr int kFewParts = 32;     // a small parameter block for the usual case
constexpr int kMostParts = 1024;  // 16 KiB of parameters

// Some of the parts: their row is `row` elements of the whole's `whole_row`, from `first` on.
template <class T, int kParts>
struct Table {
  T* whole;
  int64_t elements;  // outer * row
  int64_t whole_row, first;
  Divider row;
  int count;
  bool dense;  // row is whole_row, and the whole on 16 bytes: units of the whole are units of memory
  T* parts[kParts];
  int64_t ends[kParts];  // of each part in the row
};

// A place in the whole, and in the part that it belongs to.
template <class T>
struct Place {
  T* whole;
  T* part;
  int64_t run;  // elements from here on that lie side by side in both
};

template <class T, int kParts>
__device__ Place<T> find(const Table<T, kParts>& table, int64_t element) {
  const int64_t outer = table.row.quotient(element), column = element - outer * table.row.divisor;
  int low = 0, high = table.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (column < table.ends[middle])
      high = middle;
    else
      low = middle + 1;
  }
  const int64_t begin = low > 0 ? table.ends[low - 1] : 0;
  const int64_t length = table.ends[low] - begin;
  return {table.whole + outer * table.whole_row + table.first + column,
          table.parts[low] + outer * length + (column - begin), table.ends[low] - column};
}

template <class T>
__device__ void transfer(T* whole, T* part, ConcatWay way) {
  if (way == ConcatWay::kJoin)
    *whole = *part;
  else
    *part = way == ConcatWay::kSplitAdd ? rounded<T>(to_f32(*part) + to_f32(*whole)) : *whole;
}

template <class T, int kParts, ConcatWay way>
__global__ void __launch_bounds__(kThreads) concat_kernel(const __grid_constant__ Table<T, kParts> table) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kSteps * kThreads + threadIdx.x) * kUnit<T>;
  Place<T> places[kSteps];
  Unit<T> from[kSteps], sum[kSteps];
  bool whole_unit[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int64_t element = begin + static_cast<int64_t>(step) * kThreads * kUnit<T>;
    whole_unit[step] = false;
    if (element >= table.elements) continue;
    places[step] = find(table, element);
    whole_unit[step] =
        table.dense && places[step].run >= kUnit<T> && reinterpret_cast<uintptr_t>(places[step].part) % 16 == 0;
    if (!whole_unit[step]) continue;
    const T* source = way == ConcatWay::kJoin ? places[step].part : places[step].whole;
    from[step].bits = *reinterpret_cast<const uint4*>(source);
    if constexpr (way == ConcatWay::kSplitAdd) sum[step].bits = *reinterpret_cast<const uint4*>(places[step].part);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (whole_unit[step]) {
      if constexpr (way == ConcatWay::kSplitAdd) {
        float x[kUnit<T>], y[kUnit<T>];
        unpack(from[step], x);
        unpack(sum[step], y);
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i) x[i] = y[i] + x[i];
        pack(x, from[step]);
      }
      T* target = way == ConcatWay::kJoin ? places[step].whole : places[step].part;
      *reinterpret_cast<uint4*>(target) = from[step].bits;
      continue;
    }
    // A unit across several parts or between two units of a part: element by element; the whole's side, where it is
    // written, still as a unit.
    const int64_t element = begin + static_cast<int64_t>(step) * kThreads * kUnit<T>;
    if (element >= table.elements) continue;
    const int count = static_cast<int>(min(static_cast<int64_t>(kUnit<T>), table.elements - element));
    Place<T> place = places[step];
    T* const start = place.whole;
    Unit<T> joined;
#pragma unroll
    for (int i = 0; i < kUnit<T>; ++i) {
      if (i >= count) continue;
      if (place.run == 0) place = find(table, element + i);
      if (way == ConcatWay::kJoin && table.dense)
        joined.elements[i] = *place.part;
      else
        transfer(place.whole, place.part, way);
      ++place.whole, ++place.part, --place.run;
    }
    if (way != ConcatWay::kJoin || !table.dense) continue;
    if (count == kUnit<T>) {
      *reinterpret_cast<uint4*>(start) = joined.bits;
    } else {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i)
        if (i < count) start[i] = joined.elements[i];
    }
  }
}

template <class T, int kParts>
Status launch_parts(const ConcatArgs& args, ConcatWay way, int64_t first_part, int64_t end_part, int64_t first,
                    void* stream, int64_t& next) {
  Table<T, kParts> table{};
  int64_t end = 0;
  for (int64_t i = first_part; i < end_part; ++i) {
    const int64_t length = args.parts[i].dim(args.axis) * args.inner;
    if (length == 0) continue;
    end += length;
    table.parts[table.count] = static_cast<T*>(args.parts[i].data);
    table.ends[table.count++] = end;
  }
  next = first + end;
  if (end == 0) return Status::kOk;
  table.whole = static_cast<T*>(args.whole);
  table.elements = args.outer * end;
  table.whole_row = args.row;
  table.first = first;
  table.row = Divider(end);
  table.dense = end == args.row && on_bytes(args.whole, 16);
  const int64_t blocks = ceil_divide(table.elements, int64_t{kThreads} * kSteps * kUnit<T>);
  switch (way) {
    case ConcatWay::kJoin:
      return launch(concat_kernel<T, kParts, ConcatWay::kJoin>, blocks, kThreads, stream, table);
    case ConcatWay::kSplitAdd:
      return launch(concat_kernel<T, kParts, ConcatWay::kSplitAdd>, blocks, kThreads, stream, table);
    case ConcatWay::kSplitOverwrite:
      return launch(concat_kernel<T, kParts, ConcatWay::kSplitOverwrite>, blocks, kThreads, stream, table);
  }
  return Status::kInvalid;
}

}  // namespace

Status concat(const ConcatArgs& args, ConcatWay way, void* stream) {
  const OnDevice on_device(args.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    int64_t first = 0;
    if (args.count <= kFewParts) return launch_parts<T, kFewParts>(args, way, 0, args.count, first, stream, first);
    for (int64_t part = 0; part < args.count; part += kMostParts) {
      const int64_t end = std::min<int64_t>(part + kMostParts, args.count);
      STATUS_CHECK((launch_parts<T, kMostParts>(args, way, part, end, first, stream, first)));
    }
    return Status::kOk;
  });
}

}  // namespace lfm2::operators::gpu
