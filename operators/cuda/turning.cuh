// map and zip if an input is contiguous along another axis than the output: tiles are transposed ("turned") in shared
// memory.
#pragma once

#include "operators/cuda/function_family.cuh"

namespace lfm2::operators::gpu {

constexpr int kTile = 64;

// The arguments of the kernels here. Tiles extend over the innermost loop ("columns") and over one other loop ("rows"),
// along which turned inputs are contiguous.
template <class T, int kInputs>
struct Turning {
  T* output;
  const T* inputs[kInputs];
  bool turned[kInputs];
  Loops<1 + kInputs> rest;  // all other loops
  int64_t columns, rows;
  int64_t column_strides[1 + kInputs], row_strides[1 + kInputs];
  Divider column_tiles, row_tiles;
  int function;
  WholeUnits memory[kInputs];
};

// The tile of a block.
struct Tile {
  uint32_t outer;
  int64_t column0, row0;
  int columns, rows;

  template <class T, int kInputs>
  __device__ explicit Tile(const Turning<T, kInputs>& args) {
    const uint32_t tile = blockIdx.x, row_tile = args.column_tiles.quotient(tile);
    outer = args.row_tiles.quotient(row_tile);
    column0 = static_cast<int64_t>(tile - row_tile * static_cast<uint32_t>(args.column_tiles.divisor)) * kTile;
    row0 = static_cast<int64_t>(row_tile - outer * static_cast<uint32_t>(args.row_tiles.divisor)) * kTile;
    columns = static_cast<int>(min(args.columns - column0, static_cast<int64_t>(kTile)));
    rows = static_cast<int>(min(args.rows - row0, static_cast<int64_t>(kTile)));
  }
};

// - operands: args.inputs and args.output [rest, rows, columns], with the strides of args; the rest comes from the
//   block's number, too.
// - block: one tile of kTile rows and columns.
// - thread: first copies units along the rows of turned inputs to shared memory, then computes units along the columns
//   of the output.
// - alignment: units along the rows of turned inputs and along the columns of all other tensors on 16 bytes. No row or
//   column ends within a unit.
template <class T, int kInputs, Family family>
__global__ void __launch_bounds__(kThreads) turning_kernel(const __grid_constant__ Turning<T, kInputs> args) {
  constexpr int kAcross = kTile / kUnit<T>;                        // threads along a line of a tile
  constexpr int kAtOnce = kThreads / kAcross;                      // lines in one step
  constexpr int kLines = kTile / kAtOnce;                          // number of steps
  constexpr int kPitch = kTile + 4 / static_cast<int>(sizeof(T));  // an odd number of 4-byte words
  __shared__ __align__(16) T tiles[kInputs][kTile][kPitch];        // [column, row]
  const Tile tile(args);
  int64_t positions[1 + kInputs];
  args.rest.find(tile.outer, 1, positions);
  const int along = static_cast<int>(threadIdx.x) % kAcross * kUnit<T>, line = static_cast<int>(threadIdx.x) / kAcross;

  // For turned inputs, threads go along the rows, and a line is a column.
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    if (!args.turned[i] || along >= tile.rows) continue;
    const T* from =
        args.inputs[i] + positions[1 + i] + tile.row0 + along + (tile.column0 + line) * args.column_strides[1 + i];
    const int64_t step = kAtOnce * args.column_strides[1 + i];
    Unit<T> units[kLines];
#pragma unroll
    for (int j = 0; j < kLines; ++j, from += step)
      if (line + j * kAtOnce < tile.columns) units[j].bits = *reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int j = 0; j < kLines; ++j)
#pragma unroll
      for (int word = 0; word < 4; ++word)
        reinterpret_cast<uint32_t*>(&tiles[i][line + j * kAtOnce][along])[word] = units[j].words[word];
  }
  __syncthreads();

  // For the output, threads go along the columns, and a line is a row.
  if (along >= tile.columns) return;
#pragma unroll
  for (int j = 0; j < kLines; ++j) {
    const int row = line + j * kAtOnce;
    if (row >= tile.rows) return;
    float x[kInputs][kUnit<T>];
    Unit<T> unit;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      if (args.turned[i]) {
#pragma unroll
        for (int e = 0; e < kUnit<T>; ++e) x[i][e] = to_f32(tiles[i][along + e][row]);
      } else {
        unit.bits = *reinterpret_cast<const uint4*>(args.inputs[i] + positions[1 + i] + tile.column0 + along +
                                                    (tile.row0 + row) * args.row_strides[1 + i]);
        unpack(unit, x[i]);
      }
    }
    compute<T, family>(args.function, x);
    pack(x[0], unit);
    *reinterpret_cast<uint4*>(args.output + positions[0] + tile.column0 + along +
                              (tile.row0 + row) * args.row_strides[0]) = unit.bits;
  }
}

// Lines of turned inputs in shared memory; in global memory they may have any address. Rows of the output begin up to
// kMore columns before the tile, so that each begins with a unit of memory. Hence the tile has kMore more lines. Lines
// are read in units of memory. If the first unit begins n elements before the tile, the line is stored n elements
// before its place. The pitch of the lines has the parity of their distance in memory, so that these places are even
// and units of 16-bit elements can be stored in words.
template <class T>
struct ShiftedLines {
  static constexpr int kMore = kUnit<T> - 1, kInWord = 4 / static_cast<int>(sizeof(T));
  static constexpr int kLines = kTile + kMore, kOfLine = kTile / kUnit<T> + 1;  // kOfLine: units of a line
  static constexpr int kLoads = (kLines * kOfLine + kThreads - 1) / kThreads;
  static constexpr int kPitch = (kTile + 2 * kMore) | 1;  // the largest pitch; it is odd, so that few banks conflict
  static constexpr int kElements = (kLines * kPitch / kUnit<T> + 3) * kUnit<T>;

  int start, pitch;  // where the lines begin in shared memory, and how far they are apart

  // `first` is line 0, kMore columns before the tile, at the tile's first row. Lines `first_there` to end_there - 1
  // exist.
  __device__ __forceinline__ void load(const T* first, int64_t stride, int first_there, int end_there, int tile_rows,
                                       const WholeUnits& memory, T* lines) {
    const int thread = static_cast<int>(threadIdx.x);
    const auto shift = static_cast<uint32_t>(misaligned<T>(first)), low_stride = static_cast<uint32_t>(stride);
    pitch = kPitch - (kInWord > 1 && low_stride % 2 == 0 ? 1 : 0);
    start = kUnit<T> + static_cast<int>(shift % kInWord);
    Unit<T> units[kLoads];
    int rows[kLoads];  // the row in the tile of each unit's first element
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int ordinal = load * kThreads + thread, line = ordinal / kOfLine;
      rows[load] = ordinal % kOfLine * kUnit<T> - static_cast<int>((shift + line * low_stride) & kMore);
      if (line < first_there || line >= end_there) rows[load] = kTile;
      if (rows[load] >= tile_rows) continue;
      const T* from = first + line * stride + rows[load];
      if (memory.holds(from)) {
        units[load].bits = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll
        for (int e = 0; e < kUnit<T>; ++e)
          if (rows[load] + e >= 0 && rows[load] + e < tile_rows) units[load].elements[e] = from[e];
      }
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (rows[load] >= tile_rows) continue;
      const int line = (load * kThreads + thread) / kOfLine;
      auto* to = reinterpret_cast<uint32_t*>(lines + start + line * pitch + rows[load]);
#pragma unroll
      for (int word = 0; word < 4; ++word) to[word] = units[load].words[word];
    }
  }
  // Reads the elements of one row, from line `line` on.
  __device__ __forceinline__ void get(const T* lines, int line, int row, float (&x)[kUnit<T>]) const {
    const T* from = lines + start + line * pitch + row;
#pragma unroll
    for (int e = 0; e < kUnit<T>; ++e) x[e] = to_f32(from[e * pitch]);
  }
};

// - operands: those of turning_kernel.
// - block: one tile of kTile rows and columns.
// - thread: first units along the rows of turned inputs (ShiftedLines), then units along the columns of the output.
// - alignment: any; whole units of memory of the output are stored as 16 bytes.
template <class T, int kInputs, Family family>
__global__ void __launch_bounds__(kThreads) shifted_turning_kernel(const __grid_constant__ Turning<T, kInputs> args) {
  using Lines = ShiftedLines<T>;
  constexpr int kMore = Lines::kMore, kAcross = kTile / kUnit<T>;
  __shared__ __align__(16) T tiles[kInputs][Lines::kElements];
  const Tile tile(args);
  int64_t positions[1 + kInputs];
  args.rest.find(tile.outer, 1, positions);
  // The lines and columns that exist, counted from kMore columns before the tile.
  const int first_there = static_cast<int>(max(int64_t{0}, kMore - tile.column0));
  const int end_there = static_cast<int>(min(args.columns - tile.column0, int64_t{kTile})) + kMore;
  Lines lines[kInputs];
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    if (!args.turned[i]) continue;
    const int64_t stride = args.column_strides[1 + i];
    lines[i].load(args.inputs[i] + positions[1 + i] + tile.row0 + (tile.column0 - kMore) * stride, stride, first_there,
                  end_there, tile.rows, args.memory[i], tiles[i]);
  }
  __syncthreads();

  const int64_t row_stride = args.row_strides[0];
  T* const target = args.output + positions[0] + tile.column0 - kMore + tile.row0 * row_stride;
  const auto shift = static_cast<uint32_t>(misaligned<T>(target)), low_stride = static_cast<uint32_t>(row_stride);
#pragma unroll
  for (int step = 0; step < kTile * kAcross / kThreads; ++step) {
    // The remainder changes no result, but the compiler makes faster code with it.
    const int ordinal = step * kThreads + static_cast<int>(threadIdx.x), row = ordinal / kAcross % kTile;
    if (row >= tile.rows) continue;
    // The unit's first line; the first unit of a row begins in one of the lines 0 to kMore.
    const int line =
        ordinal % kAcross * kUnit<T> + kMore - static_cast<int>((shift + kMore + row * low_stride) & kMore);
    float x[kInputs][kUnit<T>];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      if (args.turned[i]) {
        lines[i].get(tiles[i], line, row, x[i]);
      } else {
        const int64_t stride = args.column_strides[1 + i];
        const T* from = args.inputs[i] + positions[1 + i] + (tile.row0 + row) * args.row_strides[1 + i] +
                        (tile.column0 - kMore + line) * stride;
#pragma unroll
        for (int e = 0; e < kUnit<T>; ++e)
          x[i][e] = line + e >= first_there && line + e < end_there ? to_f32(from[e * stride]) : 0.0f;
      }
    }
    compute<T, family>(args.function, x);
    Unit<T> unit;
    pack(x[0], unit);
    T* to = target + line + row * row_stride;
    if (line >= first_there && line + kMore < end_there) {
      *reinterpret_cast<uint4*>(to) = unit.bits;
    } else {
#pragma unroll
      for (int e = 0; e < kUnit<T>; ++e)
        if (line + e >= first_there && line + e < end_there) to[e] = unit.elements[e];
    }
  }
}

// The loop along which an input is contiguous while the output is not, if that input's innermost stride is not 1; 0 if
// there is none.
template <int kOperands>
int turned_loop(const Walk<kOperands>& walk) {
  constexpr int64_t kWorthIt = 16;
  if (walk.rank < 2 || walk.strides[0][0] != 1 || walk.dims[0] < kWorthIt) return 0;
  for (int operand = 1; operand < kOperands; ++operand) {
    if (walk.strides[operand][0] == 1 || walk.strides[operand][0] == 0) continue;
    for (int loop = 1; loop < walk.rank; ++loop)
      if (walk.strides[operand][loop] == 1 && walk.dims[loop] >= kWorthIt) return loop;
  }
  return 0;
}

template <class T, int kInputs, Family family>
Status launch_turning(int function, T* output, const T* const (&inputs)[kInputs], const Walk<1 + kInputs>& walk,
                      int row_loop, void* stream) {
  constexpr int kOperands = 1 + kInputs;
  Walk<kOperands> rest;
  for (int loop = 1; loop < walk.rank; ++loop) {
    if (loop == row_loop) continue;
    rest.dims[rest.rank] = walk.dims[loop];
    for (int i = 0; i < kOperands; ++i) rest.strides[i][rest.rank] = walk.strides[i][loop];
    ++rest.rank;
  }
  Turning<T, kInputs> args{
      output, {}, {}, Loops<kOperands>(rest, 1), walk.dims[0], walk.dims[row_loop], {}, {}, {}, {}, function, {}};
  for (int i = 0; i < kInputs; ++i) {
    args.inputs[i] = inputs[i];
    args.turned[i] = walk.strides[1 + i][row_loop] == 1 && walk.strides[1 + i][0] != 1 && walk.strides[1 + i][0] != 0;
    int64_t low = 0, high = 1;
    for (int loop = 0; loop < walk.rank; ++loop) {
      const int64_t way = walk.strides[1 + i][loop] * (walk.dims[loop] - 1);
      (way < 0 ? low : high) += way;
    }
    args.memory[i] = WholeUnits(inputs[i] + low, inputs[i] + high);
  }
  for (int i = 0; i < kOperands; ++i) {
    args.column_strides[i] = walk.strides[i][0];
    args.row_strides[i] = walk.strides[i][row_loop];
  }
  // Whether units of 16 bytes fit: along the rows in turned inputs, along the columns elsewhere, without a row or
  // column that ends within a unit.
  bool units = args.columns % kUnit<T> == 0 && args.rows % kUnit<T> == 0;
  for (int i = 0; i < kOperands; ++i) {
    const bool turned = i > 0 && args.turned[i - 1];
    const int fast = turned ? row_loop : 0;
    units = units && walk.strides[i][fast] == 1 &&
            on_bytes(i == 0 ? static_cast<const T*>(output) : inputs[i > 0 ? i - 1 : 0], 16);
    for (int loop = 0; loop < walk.rank; ++loop)
      units = units && (loop == fast || walk.strides[i][loop] % kUnit<T> == 0);
  }
  args.row_tiles = Divider(ceil_divide(args.rows, kTile));
  args.column_tiles = Divider(ceil_divide(args.columns + (units ? 0 : kUnit<T> - 1), kTile));
  const int64_t blocks = args.column_tiles.divisor * args.row_tiles.divisor * rest.numel();
  return launch(units ? turning_kernel<T, kInputs, family> : shifted_turning_kernel<T, kInputs, family>, blocks,
                kThreads, stream, args);
}

}  // namespace lfm2::operators::gpu
