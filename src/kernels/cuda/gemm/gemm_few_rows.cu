// Matrix products of few rows of bf16 and fp16, as decoding has them; dense and grouped. Nearly all of their time goes
// into reading w, so the tensor cores' roles are exchanged: a warp takes 16 rows of w, a tile, and all rows of a beside
// it are the columns of one or two small products. One more warp loads stages of k ahead for the block's other warps.
// Weights are not what the kernel before writes: the stages fill while that one still runs.
//
// Each output is summed over k in steps of 16 in order, in one fp32 accumulator: the bits are those of gemm_wgmma.cu,
// and the host may choose between the two by the number of rows.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_out.cuh"
#include "kernels/cuda/gemm/tensor_map.h"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2 {

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kTile = 16;            // rows of w that a warp takes
constexpr int kMostTiles = 7;        // of a block
constexpr int kRowGroup = 8;         // rows of a: the columns of one mma
constexpr int kDepth = 64;           // of k, in one piece of a row: 128 bytes, swizzled
constexpr int kSteps = kDepth / 16;  // of the mma instruction
constexpr int kRowBytes = kDepth * 2;
constexpr int kTileBytes = kTile * kRowBytes, kGroupBytes = kRowGroup * kRowBytes;
constexpr int kNoteBytes = 32;            // of a stage: a unit's place, and the barriers full and free
constexpr int kStageTiles = 8;            // of kTileBytes, in a stage, where k allows it
constexpr int kSharedBytes = 112 * 1024;  // two blocks on a multiprocessor: the next kernel's stages fill meanwhile

struct Layout {
  int tiles;   // of a block
  int pieces;  // of k, in one stage: a power of two
  int stages;
  bool whole_pieces;  // kDepth divides k
};

// `tiles` tiles of w for up to kRowGroup * groups rows of a.
struct Unit {
  int group, first_row, rows, first_column;
};

// Units are counted group by group, then by columns of out, then by rows. A warp finds its units by itself: a prefix
// sum over the groups, 32 at a time, kept in the lanes.
class Walk {
 public:
  __device__ Walk(const GemmArgs& args, int rows, int columns)
      : offsets_(args.offsets),
        groups_(static_cast<int>(args.groups)),
        m_(static_cast<int>(args.m)),
        rows_(rows),
        columns_(columns),
        across_((static_cast<int>(args.n) + columns - 1) / columns) {
    read_groups();
  }

  // Units are asked for in rising order. False behind the last.
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

 private:
  __device__ void read_groups() {
    const int group = base_ + static_cast<int>(threadIdx.x % 32);
    first_ = end_ = 0;
    if (group < groups_) {
      first_ = offsets_ == nullptr ? 0 : offsets_[group];
      end_ = offsets_ == nullptr ? m_ : offsets_[group + 1];
    }
    upto_ = (end_ - first_ + rows_ - 1) / rows_ * across_;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(kAllLanes, upto_, step);
      if (threadIdx.x % 32 >= step) upto_ += left;
    }
  }

  const int32_t* offsets_;
  int groups_, m_, rows_, columns_, across_;
  int base_ = 0, before_ = 0;  // the lanes' first group; units before it
  int first_ = 0, end_ = 0;    // rows of the lane's group
  int upto_ = 0;               // units of the lanes' groups up to this one's
};

struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Block {
  uint32_t stages, places, full, free;  // in shared memory: stages, and of each stage a place and two barriers
  int stage_bytes;
  int pieces, rounds;  // of k; rounds: stages of k

  __device__ uint32_t stage(int i) const { return stages + i * stage_bytes; }
};

// Copies of a box of a pieces_map, as load_box of hopper.cuh.
__device__ inline void load_pieces(uint32_t target, const CUtensorMap* map, uint32_t barrier, int x, int row, int piece,
                                   int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];\n" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(piece), "r"(matrix)
      : "memory");
}

// Where the loading warp is.
struct Cursor {
  Walk walk;
  int index, round = 0;
  Unit unit{};
  bool there;

  __device__ explicit Cursor(const Walk& start) : walk(start), index(static_cast<int>(blockIdx.x)) {
    there = walk.find(index, unit);
  }
  __device__ void next(int rounds) {
    if (++round < rounds) return;
    round = 0;
    index += static_cast<int>(gridDim.x);
    there = walk.find(index, unit);
  }
};

__device__ void load_stages(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                            const Layout& layout, const Block& block, int rows) {
  const bool elected = threadIdx.x % 32 == 0;
  const int w_bytes = layout.tiles * layout.pieces * kTileBytes;
  const int round_x = layout.whole_pieces ? 0 : kDepth, round_pieces = layout.whole_pieces ? layout.pieces : 0;
  const auto load_w = [&](const Cursor& at, int stage) {
    if (!elected) return;
    const uint32_t full = block.full + stage * 8;
    if (at.round == 0)
      store_shared(block.places + stage * 16,
                   {static_cast<uint32_t>(at.unit.first_row), static_cast<uint32_t>(at.unit.rows),
                    static_cast<uint32_t>(at.unit.first_column), 0});
    barrier_expect(full, block.stage_bytes);
    load_pieces(block.stage(stage), w_map, full, at.round * round_x, at.unit.first_column, at.round * round_pieces,
                at.unit.group);
  };
  const auto load_a = [&](const Cursor& at, int stage) {
    if (elected)
      load_pieces(block.stage(stage) + w_bytes, a_map, block.full + stage * 8, at.round * round_x, at.unit.first_row,
                  at.round * round_pieces, 0);
  };
  if (args.offsets != nullptr) wait_for_previous();
  Cursor cursor(Walk(args, rows, layout.tiles * kTile));
  Cursor again = cursor;
  int filled = 0;
#pragma unroll 1
  for (; filled < layout.stages && cursor.there; ++filled, cursor.next(block.rounds)) load_w(cursor, filled);
  wait_for_previous();
  let_next_start();
#pragma unroll 1
  for (int stage = 0; stage < filled; ++stage, again.next(block.rounds)) load_a(again, stage);
  Turn turn{filled, 0};
  if (filled == layout.stages) turn = {0, 1};
#pragma unroll 1
  for (; cursor.there; cursor.next(block.rounds), turn.next(layout.stages)) {
    barrier_wait(block.free + turn.stage * 8, turn.parity ^ 1);
    load_w(cursor, turn.stage);
    load_a(cursor, turn.stage);
    __syncwarp();
  }
  barrier_wait(block.free + turn.stage * 8, turn.parity ^ 1);
  if (elected) {
    store_shared(block.places + turn.stage * 16, {0, 0, 0, 1});
    barrier_arrive(block.full + turn.stage * 8);
  }
}

// One piece of k in registers.
template <int groups>
struct Parts {
  uint32_t w[kSteps][4], a[kSteps][groups][2];

  // What one step of 16 needs. `w_rows`, `a_rows`: where the warp's tile and the rows of a begin.
  __device__ void load(int step, uint32_t w_rows, uint32_t a_rows) {
    const int lane = threadIdx.x % 32, swizzle = lane % 8;
    load_matrices(w[step], w_rows + lane % 16 * kRowBytes + ((2 * step + lane / 16) ^ swizzle) * 16);
    uint32_t r[4];
    if constexpr (groups == 1) {
      if (step % 2 != 0) return;  // loaded with the step before
      load_matrices(r, a_rows + swizzle * kRowBytes + ((2 * step + lane / 8) ^ swizzle) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[step + i / 2][0][i % 2] = r[i];
    } else {
#pragma unroll
      for (int g = 0; g < groups; g += 2) {
        load_matrices(r, a_rows + (g * kRowGroup + lane / 16 * 8 + swizzle) * kRowBytes +
                             ((2 * step + lane / 8 % 2) ^ swizzle) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[step][g + i / 2][i % 2] = r[i];
      }
    }
  }
  template <class T>
  __device__ void multiply(int step, float (&sums)[groups][4]) const {
#pragma unroll
    for (int g = 0; g < groups; ++g) multiply_add<T>(sums[g], w[step], a[step][g][0], a[step][g][1]);
  }
};

// From a warp's sums to out. Lane l has of each eight rows of a: rows 2 (l % 4) + {0, 1} of them, columns l / 4 and
// l / 4 + 8 of the tile.
template <class T, int groups>
class Output {
 public:
  __device__ Output(const GemmArgs& args, bool float_out, int first_row, int rows, int column)
      : args_(args),
        float_out_(float_out),
        row_(first_row + threadIdx.x % 4 * 2),
        rows_(rows - static_cast<int>(threadIdx.x % 4 * 2)),
        tile_column_(column),
        column_(column + threadIdx.x % 32 / 4) {
    // The old values come while the sums are computed.
    if (args_.epilogue == Epilogue::kAdd)
      each([&](int g, int i, int64_t at, int) {
        old_[g][i] =
            float_out_ ? static_cast<const float*>(args_.out)[at] : to_f32(static_cast<const T*>(args_.out)[at]);
      });
  }

  __device__ void write(const float (&sums)[groups][4]) const {
    if (args_.epilogue == Epilogue::kSwiglu) {
      const int64_t n = args_.n / 2, first = row_ * n + tile_column_ / 2 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int g = 0; g < groups; ++g)
#pragma unroll
        for (int i = 0; i < 2; ++i)  // the columns of the second eight are the up rows'
          if (g * kRowGroup + i < rows_ && column_ < args_.n)
            static_cast<T*>(args_.out)[first + (g * kRowGroup + i) * n] = rounded<T>(silu(sums[g][i]) * sums[g][i + 2]);
      return;
    }
    each([&](int g, int i, int64_t at, int column) {
      float value = sums[g][i];
      if (args_.bias.data != nullptr) value += load_one(args_.bias, column);
      if (args_.epilogue == Epilogue::kAdd) value += old_[g][i];
      if (float_out_)
        static_cast<float*>(args_.out)[at] = value;
      else
        static_cast<T*>(args_.out)[at] = rounded<T>(value);
    });
  }

 private:
  template <class F>
  __device__ void each(F f) const {
#pragma unroll
    for (int g = 0; g < groups; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = g * kRowGroup + i % 2, column = column_ + i / 2 * 8;
        if (row < rows_ && column < args_.n) f(g, i, (row_ + row) * args_.n + column, column);
      }
  }

  const GemmArgs& args_;
  bool float_out_;
  int64_t row_;  // the lane's first
  int rows_;     // from it on
  int tile_column_, column_;
  float old_[groups][4];
};

template <class T, int groups>
__device__ void multiply_units(const GemmArgs& args, bool float_out, const Layout& layout, const Block& block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Turn turn;
  const int w_bytes = layout.tiles * kTileBytes;  // of one piece
  while (true) {
    barrier_wait(block.full + turn.stage * 8, turn.parity);
    const uint4 place = load_shared_by(0, block.places + turn.stage * 16);
    if (place.w != 0) return;
    Output<T, groups> output(args, float_out, static_cast<int>(place.x), static_cast<int>(place.y),
                             static_cast<int>(place.z) + warp * kTile);
    float sums[groups][4] = {};
    Parts<groups> parts[2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      parts[0].load(step, block.stage(turn.stage) + warp * kTileBytes,
                    block.stage(turn.stage) + layout.pieces * w_bytes);
    int piece = 0;
    // Multiplies one piece, which is in registers, and loads the next one between the products, each of which waits for
    // the one before. False behind the last.
    const auto multiply = [&](const Parts<groups>& now, Parts<groups>& next) {
      const uint32_t free = block.free + turn.stage * 8;
      const bool more = ++piece < block.pieces;
      const int in_stage = piece & (layout.pieces - 1);
      const bool turns = !more || in_stage == 0;
      if (turns) turn.next(layout.stages);
      now.template multiply<T>(0, sums);
      if (more) {
        if (turns) barrier_wait(block.full + turn.stage * 8, turn.parity);
        const uint32_t stage = block.stage(turn.stage), w = stage + in_stage * w_bytes + warp * kTileBytes,
                       a = stage + layout.pieces * w_bytes + in_stage * (groups * kGroupBytes);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          next.load(step, w, a);
          if (step + 1 < kSteps) now.template multiply<T>(step + 1, sums);
        }
      } else {
#pragma unroll
        for (int step = 1; step < kSteps; ++step) now.template multiply<T>(step, sums);
      }
      __syncwarp();
      if (turns && lane == 0) barrier_arrive(free);
      return more;
    };
    while (multiply(parts[0], parts[1]) && multiply(parts[1], parts[0])) {
    }
    output.write(sums);
  }
}

// `groups` of eight rows of a.
template <class T, int groups>
__global__ void __launch_bounds__((kMostTiles + 1) * 32, 2)
    gemm_few_rows_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ GemmArgs args, const __grid_constant__ Layout layout, bool float_out) {
  extern __shared__ char shared[];
  Block block;
  block.stage_bytes = layout.pieces * (layout.tiles * kTileBytes + groups * kGroupBytes);
  block.pieces = static_cast<int>((args.k + kDepth - 1) / kDepth);
  block.rounds = (block.pieces + layout.pieces - 1) / layout.pieces;
  block.stages = (shared_address(shared) + 1023) / 1024 * 1024;
  block.places = block.stage(layout.stages);
  block.full = block.places + layout.stages * 16;
  block.free = block.full + layout.stages * 8;
  const int warp = threadIdx.x / 32;
  if (warp == layout.tiles) {
    if (threadIdx.x % 32 == 0) {
      prefetch_tensor_map(&a_map);
      prefetch_tensor_map(&w_map);
#pragma unroll 1
      for (int i = 0; i < layout.stages; ++i) {
        barrier_init(block.full + i * 8, 1);
        barrier_init(block.free + i * 8, layout.tiles);
      }
      barrier_init_fence();
    }
  }
  __syncthreads();
  if (warp == layout.tiles) {
    load_stages(args, &a_map, &w_map, layout, block, groups * kRowGroup);
  } else {
    wait_for_previous();
    let_next_start();
    multiply_units<T, groups>(args, float_out, layout, block);
  }
}

// Tiles of a block: few for each multiprocessor in all, and many at a time. The host does not know how many groups have
// rows: as many as would if each row's were drawn.
int choose_tiles(const GemmArgs& args, int multiprocessors) {
  const auto groups = static_cast<double>(args.groups), m = static_cast<double>(args.m);
  const auto with_rows = args.offsets == nullptr ? 1 : std::lround(groups * (1 - std::pow(1 - 1 / groups, m)));
  const int64_t tiles = ceil_divide(args.n, kTile);
  const auto cost = [&](int count) {
    return ceil_divide(with_rows * ceil_divide(tiles, count), multiprocessors) * count;
  };
  int best = kMostTiles;
  for (int count = kMostTiles - 1; count > 0; --count)
    if (cost(count) < cost(best)) best = count;
  return best;
}

template <class T, int groups>
void launch_rows(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out) {
  constexpr int kRows = groups * kRowGroup;
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  Layout layout{};
  layout.tiles = choose_tiles(args, multiprocessors);
  layout.whole_pieces = args.k % kDepth == 0;
  const auto stages = [&](int pieces) {
    return (kSharedBytes - 1024) / (pieces * (layout.tiles * kTileBytes + groups * kGroupBytes) + kNoteBytes);
  };
  layout.pieces = 1;
  while (layout.whole_pieces && layout.pieces * 2 * layout.tiles <= kStageTiles && stages(layout.pieces * 2) >= 4)
    layout.pieces *= 2;
  layout.stages = stages(layout.pieces);
  const auto kernel = gemm_few_rows_kernel<T, groups>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const CUtensorMap a_map = pieces_map(args.a, act, 1, args.m, args.k, kRows, kDepth, layout.pieces);
  const CUtensorMap w_map =
      pieces_map(args.w.data, act, args.groups, args.n, args.k, layout.tiles * kTile, kDepth, layout.pieces);
  const int64_t units = row_tile_bound(args.m, args.groups, kRows) * ceil_divide(args.n, layout.tiles * kTile);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(units, multiprocessors));
  const auto threads = static_cast<unsigned>((layout.tiles + 1) * 32);
  launch_dependent("gemm_few_rows_kernel", kernel, {blocks, threads, kSharedBytes}, stream, a_map, w_map, args, layout,
                   float_out);
}

}  // namespace

void launch_gemm_few_rows(cudaStream_t stream, const GemmArgs& args, DType act, DType out) {
  if (args.m == 0 || args.n == 0 || args.groups == 0) return;
  const bool float_out = out == DType::kF32 && args.epilogue != Epilogue::kSwiglu;
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    // Few of many groups have more than one row.
    const int64_t rows = args.offsets == nullptr ? args.m : args.m / 4;
    return rows <= kRowGroup ? launch_rows<T, 1>(stream, args, act, float_out)
                             : launch_rows<T, 2>(stream, args, act, float_out);
  };
  if (act == DType::kBf16)
    launch(__nv_bfloat16{});
  else
    launch(__half{});
}

}  // namespace lfm2
