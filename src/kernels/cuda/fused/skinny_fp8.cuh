// Skinny products of fp8 rows that a block rounds itself and keeps in shared memory: four warps multiply 64 rows of w
// at a time with wgmma, whose bits mma.sync does not give. For the kernels of
// few_fp8_rows.h and norm_route_swiglu.cu; gemm_skinny.cu explains the rest.
//
// The bits are those of gemm_fp8.cu: sums of 128 elements of k are added in fp32, and the scales multiply the result.
#pragma once

#include "kernels/cuda/common/fp8_scale.cuh"
#include "kernels/cuda/gemm/gemm_skinny_tiles.cuh"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2::skinny {

constexpr int kFp8Warps = 4;                            // a warp has one of the tiles of an instruction
constexpr int kFp8Depth = kRowBytes;                    // elements of k in a piece
constexpr int64_t kFp8KStep = 2 * kFp8Depth;            // two pieces are multiplied at a time
constexpr int64_t kMaxFp8K = 2048, kMaxCopiedK = 7168;  // of rows that a block rounds, and of fp8 rows
constexpr int64_t kMaxSkinnyColumns = 4096;             // for more, the large tiles load from all SMs as well
constexpr int kFp8PieceBytes = kRowGroup * kRowBytes;

// What start_block and load_buffers take for k: they count pieces of 16-bit elements.
inline __host__ __device__ int64_t fp8_words(int64_t k) { return k / 2; }
inline __host__ __device__ int fp8_row_bytes(int64_t k) { return static_cast<int>(k / kFp8Depth) * kFp8PieceBytes; }

// The layout of blocks that keep kRowGroup fp8 rows before their tile buffers, and `kept` bytes of `kept_rows` rows of
// 16 bits after them. `adjacent`: a unit's tiles are, and one box has them all. k in steps of kFp8KStep.
inline Layout fp8_layout(int tiles, bool adjacent, int64_t k, Share share, int kept = 0, int64_t kept_rows = 0) {
  Layout layout{};
  layout.triggers_late = share.triggers_late;
  layout.tiles = tiles;
  layout.pieces = 1;
  layout.box_tiles = adjacent ? tiles : 1;
  layout.whole_pieces = true;
  layout.unit_columns = adjacent ? tiles * kTile : kTile;
  layout.tile_distance = kTile;
  layout.buffer_bytes = tiles * kTileBytes;
  // The last instruction reads whole tiles, also where a unit has none.
  const int spare = (kFp8Warps - 1 - (tiles - 1) % kFp8Warps) * kTileBytes;
  layout.buffers = (share.bytes - 1024 - fp8_row_bytes(k) - kept - spare) / (layout.buffer_bytes + kNoteBytes);
  layout.kept_rows = static_cast<int>(kept_rows);
  return layout;
}

// The rows that a block keeps, as the copy engine would leave them, piece by piece, and their scales.
struct Fp8Rows {
  uint32_t address;
  float* scales;  // [kRowGroup] in shared memory

  // `shared` is the block's dynamic shared memory; what lies after the rows is for start_block.
  __device__ Fp8Rows(const char* shared, float* row_scales)
      : address((shared_address(shared) + 1023) / 1024 * 1024), scales(row_scales) {}

  __device__ uint32_t address_of(int row, int column) const {
    const uint32_t byte = column % kFp8Depth;
    return address + column / kFp8Depth * kFp8PieceBytes + row * kRowBytes + (byte / 16 ^ row % 8) * 16 + byte % 16;
  }
  __device__ void store(int row, int column, uint2 words) const {
    *static_cast<uint2*>(__cvta_shared_to_generic(address_of(row, column))) = words;
  }
};

// One warp rounds a row of up to kMaxFp8K elements, a multiple of kOctet. load(column) returns an octet.
template <class T, class F>
__device__ __forceinline__ void round_row(const Fp8Rows& rows, int row, int k, const F& load) {
  constexpr int kOctets = static_cast<int>(kMaxFp8K) / kOctet / 32;  // of a lane
  const auto column = [](int i) { return (static_cast<int>(threadIdx.x % 32) + 32 * i) * kOctet; };
  Packed<T> elements[kOctets];
#pragma unroll
  for (int i = 0; i < kOctets; ++i) {
    elements[i] = {};
    if (column(i) < k) elements[i] = load(column(i));
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kOctets; ++i) largest = fmaxf(largest, largest_magnitude(unpack(elements[i])));
  const Fp8Scale scale(max_over<32>(largest));
  if (threadIdx.x % 32 == 0) rows.scales[row] = scale.value();
#pragma unroll
  for (int i = 0; i < kOctets; ++i)
    if (column(i) < k) rows.store(row, column(i), scale.round(unpack(elements[i])));
}

// One warp copies a row of a, which is fp8.
__device__ __forceinline__ void copy_row(const Fp8Rows& rows, int row, const GemmArgs& args) {
  const int lane = static_cast<int>(threadIdx.x % 32), k = static_cast<int>(args.k);
  const uint8_t* const source = static_cast<const uint8_t*>(args.a) + static_cast<int64_t>(row) * k;
  if (lane == 0) rows.scales[row] = args.scales.a[row];
#pragma unroll 4
  for (int column = lane * 16; column < k; column += 32 * 16)
    store_shared(rows.address_of(row, column), *reinterpret_cast<const uint4*>(source + column));
}

// The factors of a lane's sums with a tile: its rows of w, l / 4 and l / 4 + 8 for lane l, and of the rows that the
// block keeps 2 (l % 4) + {0, 1}.
class Fp8Factors {
 public:
  // Before the products, which hide how long this takes. `column` is the tile's first row of w, of its group's n.
  __device__ void load(const GemmArgs& args, int group, int column) {
    const int n = static_cast<int>(args.n);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = column + static_cast<int>(threadIdx.x % 32) / 4 + 8 * i;
      w_[i] = own < n ? __ldg(args.scales.w + static_cast<int64_t>(group) * n + own) : 0;
    }
  }
  // Rounded separately, as in add_scaled_pieces.
  __device__ void scale(const Fp8Rows& rows, float (&sums)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[i] = __fmul_rn(sums[i], w_[i / 2] * rows.scales[static_cast<int>(threadIdx.x % 4) * 2 + i % 2]);
  }

 private:
  float w_[2];
};

// sums += the products of a unit's tiles, four for each of `instructions`, with the rows at `rows`. All four warps call
// this together once the unit's first tile buffer is full, and keep the turn. sums[i] is that of the warp's tile i * 4
// + warp, laid out as skinny::Output describes.
template <int instructions>
__device__ __forceinline__ void multiply_fp8(const Layout& layout, const Block& block, Turn& turn,
                                             const WgmmaOperand& rows, float (&sums)[instructions][4]) {
  constexpr int kInstructionStep = kFp8Warps * kTileBytes >> 4;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int arrivals = (layout.tiles - warp + kFp8Warps - 1) / kFp8Warps;  // one for each of the warp's tiles
  float part[2][instructions][4];
  const auto start = [&](int p, const WgmmaOperand& w, int piece) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < instructions; ++i)
        wgmma<__nv_fp8_e4m3, kRowGroup>(part[p][i], w.at(i * kInstructionStep + step * kWgmmaStep),
                                        rows.at(piece * (kFp8PieceBytes >> 4) + step * kWgmmaStep), step != 0);
    wgmma_commit();
  };
  const auto keep = [&](int p) {
#pragma unroll
    for (int i = 0; i < instructions; ++i) wgmma_keep(part[p][i]);
  };
  const auto add = [&](int p, int buffer) {
    keep(p);
    if (lane < arrivals) barrier_arrive(block.free + buffer * 8);
#pragma unroll
    for (int i = 0; i < instructions; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] += part[p][i][j];
  };
#pragma unroll 1
  for (int piece = 0; piece < block.pieces; piece += 2) {
    if (piece > 0) barrier_wait(block.full + turn.buffer * 8, turn.parity);
    const int first = turn.buffer;
    turn.next(layout.buffers);
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    const int second = turn.buffer;
    turn.next(layout.buffers);
    const WgmmaOperand w0(block.buffer(first)), w1(block.buffer(second));
    keep(0);
    keep(1);
    wgmma_fence();
    start(0, w0, piece);
    start(1, w1, piece + 1);
    wgmma_wait<1>();
    add(0, first);
    wgmma_wait<0>();
    add(1, second);
  }
}

}  // namespace lfm2::skinny
