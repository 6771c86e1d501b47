// Matrix products of few rows of bf16 and fp16, as decoding has them; dense and grouped. Nearly all of their time goes
// into reading w, so the tensor cores' roles are exchanged: a warp takes 16 rows of w, a tile, and all rows of a are
// the columns of one or two small products beside it. One more warp loads tile buffers ahead for the block's other
// warps. The previous kernel does not write weights, so the tile buffers fill while it still runs.
//
// Each output is summed over k in steps of 16 in order, in one fp32 accumulator. So the bits are those of
// gemm_wgmma.cu, and the host may choose between the two by the number of rows.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/gemm/gemm_few_rows_out.cuh"
#include "kernels/cuda/gemm/gemm_few_rows_tiles.cuh"
#include "kernels/cuda/gemm/tensor_map.h"

namespace lfm2 {

namespace {

using namespace few_rows;

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

template <class T, int groups>
__device__ void multiply_units(const GemmArgs& args, bool float_out, const Layout& layout, const Block& block) {
  const int warp = threadIdx.x / 32;
  Turn turn;
  wait_for_previous();
  while (true) {
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    const uint4 place = load_shared_by(0, block.places + turn.buffer * 16);
    if (place.w != 0) return;
    Output<T, groups> output(args, float_out, static_cast<int>(place.x), static_cast<int>(place.y),
                             static_cast<int>(place.z) + warp * kTile);
    float sums[groups][4] = {};
    UnitPieces<T, groups>(layout, block, turn).multiply(sums);
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
  Block block(shared, layout.buffers, buffer_bytes(layout, groups));
  block.set_depth(args.k, layout);
  const int warp = threadIdx.x / 32;
  if (warp == layout.tiles) {
    if (threadIdx.x % 32 == 0) {
      prefetch_tensor_map(&a_map);
      prefetch_tensor_map(&w_map);
      block.init_barriers(layout.buffers, layout.tiles);
    }
  }
  __syncthreads();
  if (warp == layout.tiles) {
    load_buffers(args, &a_map, &w_map, layout, block, groups * kRowGroup);
  } else {
    multiply_units<T, groups>(args, float_out, layout, block);
  }
}

template <class T, int groups>
void launch_rows(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out) {
  constexpr int kRows = groups * kRowGroup;
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const Layout layout = make_layout(args, groups, choose_tiles(args, multiprocessors));
  const auto kernel = gemm_few_rows_kernel<T, groups>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const CUtensorMap a_map = pieces_map(args.a, act, 1, args.m, args.k, kRows, kDepth, layout.pieces);
  const CUtensorMap w_map = weights_map(args, act, layout);
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
