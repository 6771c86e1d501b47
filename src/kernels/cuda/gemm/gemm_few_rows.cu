// Matrix products of few rows of bf16 and fp16, as decoding has them; dense and grouped. Nearly all of their time goes
// into reading w, so the tensor cores' roles are exchanged: a warp takes 16 rows of w, a tile, and all rows of a are
// the columns of one or two small products beside it. One more warp loads tile buffers ahead for the block's other
// warps. The previous kernel does not write weights, so the tile buffers fill while it still runs.
//
// Each output is summed over k in steps of 16 in order, in one fp32 accumulator. So the bits are those of
// gemm_wgmma.cu, and the host may choose between the two by the number of rows.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/gemm/gemm_few_rows_out.cuh"
#include "kernels/cuda/gemm/gemm_few_rows_walk.cuh"
#include "kernels/cuda/gemm/tensor_map.h"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2 {

namespace {

using namespace few_rows;

constexpr int kTile = 16;            // rows of w that a warp takes
constexpr int kMaxTiles = 7;         // tiles of a block, each with a warp of its own
constexpr int kDepth = 64;           // elements of k in one piece of a row: 128 bytes, swizzled
constexpr int kSteps = kDepth / 16;  // mma instructions along a piece
constexpr int kRowBytes = kDepth * 2;
constexpr int kTileBytes = kTile * kRowBytes, kGroupBytes = kRowGroup * kRowBytes;
constexpr int kNoteBytes = 32;   // bytes beside each tile buffer: a unit's place, and the barriers full and free
constexpr int kBufferTiles = 8;  // pieces of tiles in a tile buffer, where k is long enough
// Two blocks fit on a multiprocessor, so that the next kernel's tile buffers fill meanwhile.
constexpr int kSharedBytes = 112 * 1024;

struct Layout {
  int tiles;   // tiles of w that a block takes
  int pieces;  // pieces of k in one tile buffer; a power of two
  int buffers;
  bool whole_pieces;  // kDepth divides k
};

struct Turn {
  int buffer = 0;
  uint32_t parity = 0;
  __device__ void next(int buffers) {
    if (++buffer == buffers) {
      buffer = 0;
      parity ^= 1;
    }
  }
};

struct Block {
  // Addresses in shared memory: the tile buffers, and for each of them a unit's place and two barriers.
  uint32_t buffers, places, full, free;
  int buffer_bytes;
  int pieces;  // pieces of k
  int rounds;  // number of tile buffers that the pieces fill

  __device__ uint32_t buffer(int i) const { return buffers + i * buffer_bytes; }
};

// Starts the copy of a box of a pieces_map, like load_box of hopper.cuh.
__device__ inline void load_pieces(uint32_t target, const CUtensorMap* map, uint32_t barrier, int x, int row, int piece,
                                   int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];\n" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(piece), "r"(matrix)
      : "memory");
}

// The place of the loading warp: its unit, and the round of k.
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

__device__ void load_buffers(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                             const Layout& layout, const Block& block, int rows) {
  const bool elected = threadIdx.x % 32 == 0;
  const int w_bytes = layout.tiles * layout.pieces * kTileBytes;
  const int round_x = layout.whole_pieces ? 0 : kDepth, round_pieces = layout.whole_pieces ? layout.pieces : 0;
  const auto load_w = [&](const Cursor& at, int buffer) {
    if (!elected) return;
    const uint32_t full = block.full + buffer * 8;
    if (at.round == 0)
      store_shared(block.places + buffer * 16,
                   {static_cast<uint32_t>(at.unit.first_row), static_cast<uint32_t>(at.unit.rows),
                    static_cast<uint32_t>(at.unit.first_column), 0});
    barrier_expect(full, block.buffer_bytes);
    load_pieces(block.buffer(buffer), w_map, full, at.round * round_x, at.unit.first_column, at.round * round_pieces,
                at.unit.group);
  };
  const auto load_a = [&](const Cursor& at, int buffer) {
    if (elected)
      load_pieces(block.buffer(buffer) + w_bytes, a_map, block.full + buffer * 8, at.round * round_x, at.unit.first_row,
                  at.round * round_pieces, 0);
  };
  if (args.offsets != nullptr) wait_for_previous();
  Cursor cursor(Walk(args, rows, layout.tiles * kTile));
  Cursor again = cursor;
  int filled = 0;
#pragma unroll 1
  for (; filled < layout.buffers && cursor.there; ++filled, cursor.next(block.rounds)) load_w(cursor, filled);
  wait_for_previous();
  let_next_start();
#pragma unroll 1
  for (int buffer = 0; buffer < filled; ++buffer, again.next(block.rounds)) load_a(again, buffer);
  Turn turn{filled, 0};
  if (filled == layout.buffers) turn = {0, 1};
#pragma unroll 1
  for (; cursor.there; cursor.next(block.rounds), turn.next(layout.buffers)) {
    barrier_wait(block.free + turn.buffer * 8, turn.parity ^ 1);
    load_w(cursor, turn.buffer);
    load_a(cursor, turn.buffer);
    __syncwarp();
  }
  barrier_wait(block.free + turn.buffer * 8, turn.parity ^ 1);
  if (elected) {
    store_shared(block.places + turn.buffer * 16, {0, 0, 0, 1});
    barrier_arrive(block.full + turn.buffer * 8);
  }
}

// What a warp multiplies of one piece of k, in its registers.
template <int groups>
struct Parts {
  uint32_t w[kSteps][4], a[kSteps][groups][2];

  // Loads what one step of 16 elements of k needs. `w_rows` and `a_rows` say where the warp's tile and the rows of a
  // begin.
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

template <class T, int groups>
__device__ void multiply_units(const GemmArgs& args, bool float_out, const Layout& layout, const Block& block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Turn turn;
  const int w_bytes = layout.tiles * kTileBytes;  // one piece of k
  while (true) {
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    const uint4 place = load_shared_by(0, block.places + turn.buffer * 16);
    if (place.w != 0) return;
    Output<T, groups> output(args, float_out, static_cast<int>(place.x), static_cast<int>(place.y),
                             static_cast<int>(place.z) + warp * kTile);
    float sums[groups][4] = {};
    Parts<groups> parts[2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      parts[0].load(step, block.buffer(turn.buffer) + warp * kTileBytes,
                    block.buffer(turn.buffer) + layout.pieces * w_bytes);
    int piece = 0;
    // Multiplies one piece, which is in registers, and loads the next one between the products, each of which waits for
    // the previous one. Returns false behind the last piece.
    const auto multiply = [&](const Parts<groups>& now, Parts<groups>& next) {
      const uint32_t free = block.free + turn.buffer * 8;
      const bool more = ++piece < block.pieces;
      const int in_buffer = piece & (layout.pieces - 1);
      const bool turns = !more || in_buffer == 0;
      if (turns) turn.next(layout.buffers);
      now.template multiply<T>(0, sums);
      if (more) {
        if (turns) barrier_wait(block.full + turn.buffer * 8, turn.parity);
        const uint32_t buffer = block.buffer(turn.buffer), w = buffer + in_buffer * w_bytes + warp * kTileBytes,
                       a = buffer + layout.pieces * w_bytes + in_buffer * (groups * kGroupBytes);
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

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a and w of type T, out
//   of type T or fp32 (`float_out`), bias of any type; a_map and w_map describe a and w to the copy engine.
// - block: walks through units of layout.tiles tiles of 16 rows of w and up to 8 `groups` rows of a (Walk).
// - thread: the last warp loads (load_buffers); each of the others multiplies a tile of w and writes its 16 columns
//   of out (multiply_units).
// - alignment: n and k in octets (kSwiglu: n in sixteens), everything on 16 bytes.
template <class T, int groups>
__global__ void __launch_bounds__((kMaxTiles + 1) * 32, 2)
    gemm_few_rows_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ GemmArgs args, const __grid_constant__ Layout layout, bool float_out) {
  extern __shared__ char shared[];
  Block block;
  block.buffer_bytes = layout.pieces * (layout.tiles * kTileBytes + groups * kGroupBytes);
  block.pieces = static_cast<int>((args.k + kDepth - 1) / kDepth);
  block.rounds = (block.pieces + layout.pieces - 1) / layout.pieces;
  block.buffers = (shared_address(shared) + 1023) / 1024 * 1024;
  block.places = block.buffer(layout.buffers);
  block.full = block.places + layout.buffers * 16;
  block.free = block.full + layout.buffers * 8;
  const int warp = threadIdx.x / 32;
  if (warp == layout.tiles) {
    if (threadIdx.x % 32 == 0) {
      prefetch_tensor_map(&a_map);
      prefetch_tensor_map(&w_map);
#pragma unroll 1
      for (int i = 0; i < layout.buffers; ++i) {
        barrier_init(block.full + i * 8, 1);
        barrier_init(block.free + i * 8, layout.tiles);
      }
      barrier_init_fence();
    }
  }
  __syncthreads();
  if (warp == layout.tiles) {
    load_buffers(args, &a_map, &w_map, layout, block, groups * kRowGroup);
  } else {
    wait_for_previous();
    let_next_start();
    multiply_units<T, groups>(args, float_out, layout, block);
  }
}

// The number of tiles that a block takes at a time: the one with which the busiest multiprocessor has the fewest tiles
// in all, and the largest such. The host does not know how many groups have rows. It takes the expected number where
// each of m rows draws its group out of g: g (1 - (1 - 1 / g)^m).
int choose_tiles(const GemmArgs& args, int multiprocessors) {
  const auto groups = static_cast<double>(args.groups), m = static_cast<double>(args.m);
  const auto with_rows = args.offsets == nullptr ? 1 : std::lround(groups * (1 - std::pow(1 - 1 / groups, m)));
  const int64_t tiles = ceil_divide(args.n, kTile);
  const auto cost = [&](int count) {
    return ceil_divide(with_rows * ceil_divide(tiles, count), multiprocessors) * count;
  };
  int best = kMaxTiles;
  for (int count = kMaxTiles - 1; count > 0; --count)
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
  const auto buffers = [&](int pieces) {
    return (kSharedBytes - 1024) / (pieces * (layout.tiles * kTileBytes + groups * kGroupBytes) + kNoteBytes);
  };
  layout.pieces = 1;
  while (layout.whole_pieces && layout.pieces * 2 * layout.tiles <= kBufferTiles && buffers(layout.pieces * 2) >= 4)
    layout.pieces *= 2;
  layout.buffers = buffers(layout.pieces);
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
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    // When rows are spread over many groups, few groups have more than one row.
    const int64_t rows = args.offsets == nullptr ? args.m : args.m / 4;
    return rows <= kRowGroup ? launch_rows<T, 1>(stream, args, act, float_out)
                             : launch_rows<T, 2>(stream, args, act, float_out);
  });
}

}  // namespace lfm2
