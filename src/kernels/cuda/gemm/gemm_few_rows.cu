// Matrix products of few rows of bf16 and fp16, as decoding has them; dense and grouped. Nearly all of their time goes
// into reading w, so the tensor cores' roles are exchanged: a warp takes 16 rows of w, a tile, and all rows of a are
// the columns of one or two small products beside it. One more warp loads tile buffers ahead for the block's other
// warps. The previous kernel does not write weights, so the tile buffers fill while it still runs.
//
// Each output is summed over k in steps of 16 in order, in one fp32 accumulator. So the bits are those of
// gemm_wgmma.cu, and the host may choose between the two by the number of rows.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/gemm/gemm_few_rows_out.cuh"
#include "kernels/cuda/gemm/gemm_few_rows_walk.cuh"
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
  int tiles;      // tiles of w that a block takes
  int pieces;     // pieces of k in one tile buffer; in it they lie tile by tile, then those of a
  int box_tiles;  // tiles of a box, which has its pieces outside: all tiles of a single piece, otherwise one
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
                                   int matrix, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6}], [%2], %7;\n" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(piece), "r"(matrix), "l"(policy)
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

// Whether the offsets must be waited for. The next kernel may then start only behind that wait, so that it finds them
// written.
__device__ inline bool offsets_are_new(const GemmArgs& args) {
  return args.offsets != nullptr && !args.offsets_are_old;
}

__device__ void load_buffers(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                             const Layout& layout, const Block& block, int rows) {
  const bool elected = elect_lane();
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
#pragma unroll 1
    for (int tile = 0; tile < layout.tiles; tile += layout.box_tiles)
      load_pieces(block.buffer(buffer) + tile * layout.pieces * kTileBytes, w_map, full, at.round * round_x,
                  at.unit.first_column + tile * kTile, at.round * round_pieces, at.unit.group, kEvictFirst);
  };
  const auto load_a = [&](const Cursor& at, int buffer) {
    if (elected)
      load_pieces(block.buffer(buffer) + w_bytes, a_map, block.full + buffer * 8, at.round * round_x, at.unit.first_row,
                  at.round * round_pieces, 0, kEvictNormal);
  };
  const bool behind_wait = offsets_are_new(args);
  if (behind_wait) {
    wait_for_previous();
    let_next_start();
  }
  Cursor cursor(Walk(args, rows, layout.tiles * kTile));
  Cursor again = cursor;
  int filled = 0;
  if (!behind_wait) {
#pragma unroll 1
    for (; filled < layout.buffers && cursor.there; ++filled, cursor.next(block.rounds)) load_w(cursor, filled);
    wait_for_previous();
#pragma unroll 1
    for (int buffer = 0; buffer < filled; ++buffer, again.next(block.rounds)) load_a(again, buffer);
  }
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

  template <class T>
  __device__ void multiply(float (&sums)[groups][4]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int g = 0; g < groups; ++g) multiply_add<T>(sums[g], w[step], a[step][g][0], a[step][g][1]);
  }
};

// Where a lane finds its part of the pieces in a tile buffer. A warp that is alone on its scheduler waits for every
// address that it computes, so these are computed once a buffer, and pieces lie at fixed distances from them.
template <int groups>
class PieceAddresses {
 public:
  // `w_rows` and `a_rows` say where the first pieces of the warp's tile and of the rows of a begin, on 1024 bytes.
  __device__ PieceAddresses(uint32_t w_rows, uint32_t a_rows) {
    const int lane = threadIdx.x % 32, swizzle = lane % 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      w_[step] = w_rows + lane % 16 * kRowBytes + ((2 * step + lane / 16) ^ swizzle) * 16;
#pragma unroll
    for (int i = 0; i < kALoads; ++i)
      a_[i] = groups == 1 ? a_rows + swizzle * kRowBytes + ((4 * i + lane / 8) ^ swizzle) * 16
                          : a_rows + (lane / 16 * 8 + swizzle) * kRowBytes + ((2 * i + lane / 8 % 2) ^ swizzle) * 16;
  }

  // Loads the piece `ahead` of the first one.
  __device__ void load(Parts<groups>& parts, int ahead) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load_matrices(parts.w[step], w_[step] + ahead * kTileBytes);
#pragma unroll
    for (int i = 0; i < kALoads; ++i) {
      uint32_t r[4];
      load_matrices(r, a_[i] + ahead * groups * kGroupBytes);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (groups == 1)  // two steps of the only eight rows
          parts.a[2 * i + j / 2][0][j % 2] = r[j];
        else  // one step of sixteen rows
          parts.a[i][j / 2][j % 2] = r[j];
      }
    }
  }
  __device__ void advance(int pieces) {
#pragma unroll
    for (uint32_t& address : w_) address += pieces * kTileBytes;
#pragma unroll
    for (uint32_t& address : a_) address += pieces * groups * kGroupBytes;
  }

 private:
  static_assert(groups == 1 || groups == 2);
  static constexpr int kALoads = groups == 1 ? kSteps / 2 : kSteps;
  uint32_t w_[kSteps], a_[kALoads];
};

// Adds the products of the first `pieces` pieces of a tile buffer, each loaded while the one before it is multiplied.
template <class T, int groups>
__device__ void multiply_buffer(PieceAddresses<groups> addresses, int pieces, float (&sums)[groups][4]) {
  Parts<groups> parts[2];
  addresses.load(parts[0], 0);
#pragma unroll 1
  for (; pieces > 2; pieces -= 2, addresses.advance(2)) {
    addresses.load(parts[1], 1);
    parts[0].template multiply<T>(sums);
    addresses.load(parts[0], 2);
    parts[1].template multiply<T>(sums);
  }
  if (pieces == 2) addresses.load(parts[1], 1);
  parts[0].template multiply<T>(sums);
  if (pieces == 2) parts[1].template multiply<T>(sums);
}

template <class T, int groups>
__device__ void multiply_units(const GemmArgs& args, bool float_out, const Layout& layout, const Block& block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t w_offset = warp * layout.pieces * kTileBytes, a_offset = layout.tiles * layout.pieces * kTileBytes;
  Turn turn;
  wait_for_previous();
  while (true) {
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    const uint4 place = load_shared_by(0, block.places + turn.buffer * 16);
    if (place.w != 0) return;
    Output<T, groups> output(args, float_out, static_cast<int>(place.x), static_cast<int>(place.y),
                             static_cast<int>(place.z) + warp * kTile);
    float sums[groups][4] = {};
    for (int first = 0; first < block.pieces; first += layout.pieces, turn.next(layout.buffers)) {
      if (first > 0) barrier_wait(block.full + turn.buffer * 8, turn.parity);
      const uint32_t buffer = block.buffer(turn.buffer);
      multiply_buffer<T, groups>({buffer + w_offset, buffer + a_offset}, min(layout.pieces, block.pieces - first),
                                 sums);
      __syncwarp();
      if (lane == 0) barrier_arrive(block.free + turn.buffer * 8);
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
  if (!offsets_are_new(args)) let_next_start();
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
    multiply_units<T, groups>(args, float_out, layout, block);
  }
}

// The number of tiles that a block takes at a time: the one with which the busiest multiprocessor has the fewest tiles
// in all, and the largest such. One token's rows go to as many groups. With more rows the host does not know how many
// groups have any, and small units spread evenly whatever it is.
int choose_tiles(const GemmArgs& args, int multiprocessors) {
  constexpr int64_t kTokenGroups = 4;
  if (args.offsets != nullptr && args.m > kTokenGroups) return 3;
  const int64_t with_rows = args.offsets == nullptr ? 1 : std::min(args.m, args.groups);
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
  layout.box_tiles = layout.pieces == 1 ? layout.tiles : 1;
  const auto kernel = gemm_few_rows_kernel<T, groups>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const CUtensorMap a_map = pieces_map(args.a, act, 1, args.m, args.k, kRows, kDepth, layout.pieces);
  const CUtensorMap w_map =
      pieces_map(args.w.data, act, args.groups, args.n, args.k, layout.box_tiles * kTile, kDepth, layout.pieces);
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
