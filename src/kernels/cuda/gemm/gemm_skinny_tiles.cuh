// What the kernels for skinny products share: tile buffers in shared memory, which one warp fills ahead, and the
// products of the tiles in them by the block's other warps. gemm_skinny.cu explains how the work is divided.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/gemm/gemm_skinny_scheduler.cuh"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2::skinny {

constexpr int kTile = 16;            // rows of w for a warp
constexpr int kMaxTiles = 7;         // tiles of a block, one for each warp that multiplies
constexpr int kDepth = 64;           // elements of k in one piece of a row: 128 bytes, swizzled
constexpr int kSteps = kDepth / 16;  // mma instructions along a piece
constexpr int kRowBytes = kDepth * 2;
constexpr int kTileBytes = kTile * kRowBytes;
static_assert(kTileBytes % 1024 == 0 && kRowGroup * kRowBytes % 1024 == 0, "swizzled rows come in eights");
constexpr int kNoteBytes = 32;   // bytes beside each tile buffer: a unit's place, and the barriers full and free
constexpr int kBufferTiles = 8;  // pieces of tiles in a tile buffer, if k is long enough

// How much of an SM's 228 KB of shared memory a block of the kernel uses, not counting the 1 KB that every block uses,
// and whether the kernel triggers the next one after its own wait instead of first. Both decide which kernels fit on an
// SM together, and so fill their tile buffers while others compute.
struct Share {
  int bytes;
  bool triggers_late = false;
  constexpr Share without(int used) const { return {bytes - used, triggers_late}; }
};
constexpr Share kHalf{112 * 1024};  // two blocks of any of these fit
enum class Kernel {
  kNarrowProduct,
  kWideProduct,  // of more columns than k
  kNormProduct,
  kConvolvedProduct,
  kNormConvolvedProduct,
  kRoutedProduct,
  kCombinedProduct
};
// For this number of rows of the residual. What a kernel loads early competes with the running kernel for bandwidth
// (docs/lab/h200.md). So a product before a longer one loads early only what its own chains of sums would otherwise
// wait for. With one or two rows the routed product is fastest alone, with most of the memory; with more, beside the
// next kernel.
constexpr Share share_of(Kernel kernel, int64_t rows) {
  constexpr int kKilo = 1024;
  const bool fewest = rows <= 2, few = rows <= kRowGroup;
  switch (kernel) {
    case Kernel::kNarrowProduct:
      return few && !fewest ? Share{72 * kKilo} : Share{80 * kKilo, true};
    case Kernel::kWideProduct:
      return fewest ? Share{80 * kKilo} : kHalf;
    case Kernel::kNormProduct:
      return {128 * kKilo, true};
    case Kernel::kConvolvedProduct:
      return {128 * kKilo};
    case Kernel::kNormConvolvedProduct:
      return kHalf;
    case Kernel::kRoutedProduct:
      return {(fewest ? 152 : 128) * kKilo};
    case Kernel::kCombinedProduct:
      return {96 * kKilo, fewest};
  }
  return kHalf;
}
constexpr int max_bytes(Kernel kernel) {
  int max = 0;
  for (int64_t rows = 1; rows <= 2 * kRowGroup; ++rows) max = std::max(max, share_of(kernel, rows).bytes);
  return max;
}

struct Layout {
  int tiles;      // tiles of w for a block
  int pieces;     // pieces of k in a tile buffer, which holds tile by tile all pieces of w, then those of a
  int box_tiles;  // tiles of one box: all tiles if `pieces` is 1, otherwise one, with all its pieces
  int buffers;
  int buffer_bytes;
  bool whole_pieces;   // kDepth divides k
  int unit_columns;    // columns from a unit to the next one
  int tile_distance;   // rows of w from a unit's tile to its next tile
  int a_bytes;         // bytes of a piece of a in a tile buffer
  bool triggers_late;  // Share::triggers_late
  int kept_rows;       // rows of a that the block keeps after its tile buffers instead: all or none
};

// The layout of blocks whose tiles are adjacent, in share.bytes of shared memory. `a_rows`: rows of a in a tile buffer.
inline Layout layout_of(int tiles, int a_rows, int64_t k, Share share) {
  Layout layout{};
  layout.triggers_late = share.triggers_late;
  layout.a_bytes = a_rows * kRowBytes;
  layout.tiles = tiles;
  layout.unit_columns = tiles * kTile;
  layout.tile_distance = kTile;
  layout.whole_pieces = k % kDepth == 0;
  const auto buffers = [&](int pieces) {
    return (share.bytes - 1024) / (pieces * (tiles * kTileBytes + layout.a_bytes) + kNoteBytes);
  };
  layout.pieces = 1;
  while (layout.whole_pieces && layout.pieces * 2 * tiles <= kBufferTiles && buffers(layout.pieces * 2) >= 4)
    layout.pieces *= 2;
  layout.buffers = buffers(layout.pieces);
  layout.buffer_bytes = layout.pieces * (tiles * kTileBytes + layout.a_bytes);
  layout.box_tiles = layout.pieces == 1 ? tiles : 1;
  return layout;
}

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
  uint32_t kept;  // the rows of a that the block keeps, piece by piece, as they would lie in a tile buffer
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

// Prepares the block's shared memory, `shared`. All threads of the block call this.
__device__ inline Block start_block(const char* shared, const CUtensorMap* a_map, const CUtensorMap* w_map,
                                    const Layout& layout, int64_t k) {
  Block block;
  block.buffer_bytes = layout.buffer_bytes;
  block.pieces = static_cast<int>((k + kDepth - 1) / kDepth);
  block.rounds = (block.pieces + layout.pieces - 1) / layout.pieces;
  block.buffers = (shared_address(shared) + 1023) / 1024 * 1024;
  block.places = block.buffer(layout.buffers);
  block.full = block.places + layout.buffers * 16;
  block.free = block.full + layout.buffers * 8;
  block.kept = block.free + layout.buffers * 8;
  if (static_cast<int>(threadIdx.x) == layout.tiles * 32) {  // the loading warp is the last one
    prefetch_tensor_map(a_map);
    prefetch_tensor_map(w_map);
#pragma unroll 1
    for (int i = 0; i < layout.buffers; ++i) {
      barrier_init(block.full + i * 8, 1);
      barrier_init(block.free + i * 8, layout.tiles);
    }
    barrier_init_fence();
  }
  __syncthreads();
  return block;
}

// The position of the loading warp: its unit, and the round of k.
template <class UnitScheduler>
struct Cursor {
  UnitScheduler scheduler;
  int round = 0;
  typename UnitScheduler::Unit unit{};
  bool there;

  __device__ explicit Cursor(const UnitScheduler& start) : scheduler(start) { there = scheduler.next(unit); }
  __device__ void next(int rounds) {
    if (++round < rounds) return;
    round = 0;
    there = scheduler.next(unit);
  }
};

// Whether the offsets must be waited for. The kernel then triggers the next one only after that wait, so that the next
// kernel finds them written.
__device__ inline bool offsets_need_wait(const GemmArgs& args) {
  return args.offsets != nullptr && args.offsets_visible == Visible::kAfterWait;
}

// Every thread calls this first.
__device__ inline void pdl_trigger_early(const GemmArgs& args, const Layout& layout) {
  if (!layout.triggers_late && !offsets_need_wait(args)) pdl_trigger();
}

// What the loading warp does: it fills the tile buffers of the block's units in the order of make_scheduler(), which it
// calls once the offsets may be read. If the block keeps a, it calls make_kept() after the wait instead of loading a.
template <class MakeScheduler, class F = std::nullptr_t>
__device__ void load_buffers(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                             const Layout& layout, const Block& block, MakeScheduler make_scheduler,
                             [[maybe_unused]] F make_kept = {}) {
  using UnitScheduler = decltype(make_scheduler());
  constexpr bool kKept = !std::is_null_pointer_v<F>;
  const bool elected = elect_lane();
  const int w_bytes = layout.tiles * layout.pieces * kTileBytes;
  const int round_x = layout.whole_pieces ? 0 : kDepth, round_pieces = layout.whole_pieces ? layout.pieces : 0;
  const auto load_w = [&](const Cursor<UnitScheduler>& at, int buffer) {
    if (!elected) return;
    const uint32_t full = block.full + buffer * 8;
    if (at.round == 0)
      store_shared(block.places + buffer * 16,
                   {static_cast<uint32_t>(at.unit.first_row), static_cast<uint32_t>(at.unit.rows),
                    static_cast<uint32_t>(at.unit.first_column), 0});
    const int tiles = at.unit.tiles(layout.tiles);
    barrier_expect(full, block.buffer_bytes - (layout.tiles - tiles) * layout.pieces * kTileBytes);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile += layout.box_tiles)
      load_pieces(block.buffer(buffer) + tile * layout.pieces * kTileBytes, w_map, full, at.round * round_x,
                  at.unit.first_column + tile * layout.tile_distance, at.round * round_pieces, at.unit.group_of(tile),
                  kEvictFirst);
  };
  const auto load_a = [&](const Cursor<UnitScheduler>& at, int buffer) {
    if (!kKept && elected)
      load_pieces(block.buffer(buffer) + w_bytes, a_map, block.full + buffer * 8, at.round * round_x, at.unit.first_row,
                  at.round * round_pieces, 0, kEvictNormal);
  };
  const bool after_wait = offsets_need_wait(args);
  if (after_wait) {
    pdl_wait();
    pdl_trigger();
  }
  Cursor<UnitScheduler> cursor(make_scheduler());
  Cursor<UnitScheduler> again = cursor;
  int filled = 0;
  if (!after_wait) {
#pragma unroll 1
    for (; filled < layout.buffers && cursor.there; ++filled, cursor.next(block.rounds)) load_w(cursor, filled);
    pdl_wait();
    if (layout.triggers_late) pdl_trigger();
    if constexpr (kKept) {
      make_kept();
    } else {
#pragma unroll 1
      for (int buffer = 0; buffer < filled; ++buffer, again.next(block.rounds)) load_a(again, buffer);
    }
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

// The operands of a warp's products for one piece of k, in registers.
template <int groups>
struct Parts {
  uint32_t w[kSteps][4], a[kSteps][groups][2];

  template <class T, int first, int end>
  __device__ void multiply(float (&sums)[groups][4]) const {
#pragma unroll
    for (int step = first; step < end; ++step)
#pragma unroll
      for (int g = 0; g < groups; ++g) multiply_add<T>(sums[g], w[step], a[step][g][0], a[step][g][1]);
  }
};

// The addresses of a lane's part of a piece in a tile buffer: of the warp's tile, and of the rows of a.
template <int groups>
class PieceAddresses {
 public:
  // `w` and `a` are the addresses of the piece, w on 1024 bytes. The lane reads row `a_row` of a.
  __device__ PieceAddresses(uint32_t w, uint32_t a, int a_row) {
    const int lane = threadIdx.x % 32, swizzle = lane % 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      w_[step] = w + lane % 16 * kRowBytes + ((2 * step + lane / 16) ^ swizzle) * 16;
#pragma unroll
    for (int i = 0; i < kALoads; ++i)
      a_[i] = a + a_row * kRowBytes + ((groups == 1 ? 4 * i + lane / 8 : 2 * i + lane / 8 % 2) ^ a_row % 8) * 16;
  }
  __device__ void move(int w_bytes, int a_bytes) {
#pragma unroll
    for (uint32_t& address : w_) address += w_bytes;
#pragma unroll
    for (uint32_t& address : a_) address += a_bytes;
  }
  __device__ void load(Parts<groups>& parts) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_matrices(parts.w[step], w_[step]);
      if (groups == 1 && step % 2 != 0) continue;  // with eight rows, one load brings two steps
      uint32_t r[4];
      load_matrices(r, a_[groups == 1 ? step / 2 : step]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (groups == 1)
          parts.a[step + j / 2][0][j % 2] = r[j];
        else
          parts.a[step][j / 2][j % 2] = r[j];
      }
    }
  }

 private:
  static_assert(groups == 1 || groups == 2);
  static constexpr int kALoads = groups == 1 ? kSteps / 2 : kSteps;
  uint32_t w_[kSteps], a_[kALoads];
};

// The row of a that a lane reads when a warp multiplies all rows of a tile buffer.
template <int groups>
__device__ int row_of_lane() {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return groups == 1 ? lane % 8 : lane / 16 * 8 + lane % 8;
}
// The same if the block keeps the rows. It repeats the last row, because columns for rows that do not exist may be
// anything.
__device__ inline int kept_row_of_lane(const Layout& layout) { return min(row_of_lane<1>(), layout.kept_rows - 1); }

// The pieces of k of a unit, as one warp consumes them from the tile buffers. Each product waits for the previous one,
// so nothing else may delay it: a piece is loaded while the previous piece is multiplied, also from the next buffer if
// that is full by then. `kept`: a is what the block keeps.
template <class T, int groups, bool kept = false>
class UnitPieces {
 public:
  // The buffer of `turn` is full and holds the unit's first pieces. The lane reads row `a_row` of a.
  __device__ UnitPieces(const Layout& layout, const Block& block, Turn& turn, int a_row = row_of_lane<groups>())
      : layout_(layout),
        block_(block),
        turn_(turn),
        here_(layout.pieces),
        addresses_(block.buffer(turn.buffer) + threadIdx.x / 32 * layout.pieces * kTileBytes,
                   kept ? block.kept : block.buffer(turn.buffer) + layout.tiles * layout.pieces * kTileBytes, a_row) {}

  // Adds the unit's products, and leaves the turn at the buffer that follows the unit's last one.
  __device__ void multiply(float (&sums)[groups][4]) {
    Parts<groups> parts[2];
    addresses_.load(parts[0]);
#pragma unroll 1
    for (int left = block_.pieces; left > 0; left -= 2) {
      step(parts[0], parts[1], left > 1, sums);
      if (left > 1) step(parts[1], parts[0], left > 2, sums);
    }
  }

 private:
  // Multiplies a piece, and loads the next one if there is any.
  __device__ __forceinline__ void step(const Parts<groups>& parts, Parts<groups>& next, bool more,
                                       float (&sums)[groups][4]) {
    const bool last_here = --here_ == 0 || !more;  // of its buffer
    const int buffer = turn_.buffer;
    const int a_bytes = kept ? layout_.kept_rows * kRowBytes : layout_.a_bytes;  // from a piece to the next
    bool ready = more;
    parts.template multiply<T, 0, 1>(sums);
    if (last_here) {
      turn_.next(layout_.buffers);
      if (more) ready = barrier_test(full(), turn_.parity);
      const int away = (turn_.buffer - buffer) * block_.buffer_bytes;
      addresses_.move(away - (layout_.pieces - 1) * kTileBytes, kept ? a_bytes : away - (layout_.pieces - 1) * a_bytes);
      here_ = layout_.pieces;
    } else {
      addresses_.move(kTileBytes, a_bytes);
    }
    parts.template multiply<T, 1, 2>(sums);
    ready = __all_sync(kAllLanes, ready);
    if (ready) addresses_.load(next);
    parts.template multiply<T, 2, kSteps>(sums);
    if (!last_here) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(block_.free + buffer * 8);
    if (!more || ready) return;
    barrier_wait(full(), turn_.parity);
    addresses_.load(next);
  }
  __device__ uint32_t full() const { return block_.full + turn_.buffer * 8; }

  const Layout& layout_;
  const Block& block_;
  Turn& turn_;
  int here_;  // pieces of the buffer that are left to multiply
  PieceAddresses<groups> addresses_;
};

}  // namespace lfm2::skinny
