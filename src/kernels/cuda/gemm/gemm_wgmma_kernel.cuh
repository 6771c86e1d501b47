// Matrix products of bf16, fp16 and fp8 on Hopper's tensor cores; dense and grouped. Each output is summed over k in
// steps of 32 bytes in order, in one fp32 accumulator, whatever the tile, so the bits of a row do not depend on the
// rows beside it. With fp8, each 128 of k have a separate accumulator, which is then added to fp32 sums (gemm_fp8.cuh).
//
// The kernel is persistent: one block stays on each SM and processes one tile after another. One warp loads pieces of w
// and another warp pieces of a, ahead of one or two warpgroups that multiply and may round a themselves. No kernel
// writes weights, so the warp that loads w starts before the previous kernel has ended. The two blocks of a cluster
// compute two tiles that share columns of w, or rows of a; each block loads a part of the shared operand for both.
//
// If groups have few rows, the roles of a and w are exchanged (swap-AB), because the instruction has rows in 64s but
// columns in eights. The bits are the same.
#pragma once

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/gemm/gemm_fp8.cuh"
#include "kernels/cuda/gemm/gemm_wgmma.h"
#include "kernels/cuda/gemm/gemm_wgmma_block.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_out.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_scheduler.cuh"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2 {

namespace {

using namespace wgmma_tiles;

constexpr int kLoaderRegisters = 56, kMultiplierRegisters = 224;

template <class T, class Out, WgmmaTile tile, bool swiglu>
__device__ void multiply_tiles(const GemmArgs& args, bool float_out, Block<tile> block);
template <class T, class Out, WgmmaTile tile, bool swiglu>
__device__ void multiply_transposed_tiles(const GemmArgs& args, Block<tile> block);

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a and w of type T, out of
//   type Out or fp32 (`float_out`), bias of any type; a_map and w_map describe a and w to the copy engine.
// - block: stays on its SM and processes one tile after another (TileScheduler), together with the other block of its
//   cluster if there is one.
// - thread: the warps of one or two warpgroups multiply 64 rows each, of a, or of w if the transpose is computed, and
//   write (multiply_tiles, multiply_transposed_tiles); they may round a before (round_rows). The next warp loads w
//   (load_w), the one after it a (load_a). Any others do nothing, as registers are assigned by warpgroup.
// - alignment: n in octets (kSwiglu: in sixteens), rows of a and w in 16 bytes, everything on 16 bytes.
template <class T, class Out, int rows, int columns, int cluster, bool transposed, bool rounds, bool swiglu>
__global__ void __launch_bounds__(Shape<WgmmaTile{rows, columns, cluster, transposed, rounds}>::kThreads,
                                  Shape<WgmmaTile{rows, columns, cluster, transposed, rounds}>::kBlocks)
    gemm_wgmma_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ GemmArgs args, int box_rows, bool float_out) {
  // nvcc does not accept structures as template parameters of a kernel.
  constexpr WgmmaTile tile{rows, columns, cluster, transposed, rounds};
  using S = Shape<tile>;
  // Offsets that become visible only with this kernel's wait are waited for before the trigger, so that the next kernel
  // may read them before its own wait.
  const bool known = args.offsets == nullptr || args.offsets_visible == Visible::kBeforeWait;
  if (known) pdl_trigger();
  extern __shared__ char shared[];
  Block<tile> block((shared_address(shared) + 1023) / 1024 * 1024, args.k, kDepth<T>);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&a_map);
    prefetch_tensor_map(&w_map);
    block.ring.init_barriers(S::kMultipliers * 4 * tile.cluster);
    barrier_init_fence();
  }
  if constexpr (tile.cluster > 1)
    cluster_sync();
  else
    __syncthreads();
  const int warp = threadIdx.x / 32;
  if (!known || warp != S::kLoaderOfW) pdl_wait();
  if (!known) pdl_trigger();
  if (warp < S::kLoaderOfW) {
    if constexpr (S::kBlocks == 1) setmaxnreg_inc<kMultiplierRegisters>();
    if constexpr (transposed)
      multiply_transposed_tiles<T, Out, tile, swiglu>(args, block);
    else
      multiply_tiles<T, Out, tile, swiglu>(args, float_out, block);
  } else {
    if constexpr (S::kBlocks == 1) setmaxnreg_dec<kLoaderRegisters>();
    if (warp == S::kLoaderOfW) {
      load_w<kDepth<T>, tile>(args, &w_map, block);
      pdl_wait();
    } else if (!rounds && warp == S::kLoaderOfA) {
      load_a<kDepth<T>, tile>(args, &a_map, box_rows, block);
    }
  }
  if constexpr (tile.cluster > 1) cluster_sync();  // the other block's copies and arrivals may still be on their way
}

// Whether tiles of `rows` rows may compute the transpose of the product (multiply_transposed).
__host__ __device__ bool takes_transposed(const GemmArgs& args, bool float_out, int rows) {
  return args.epilogue == Epilogue::kSwiglu ||
         (!float_out && (rows <= kMaxDirectRows || (args.epilogue == Epilogue::kStore && args.bias.data == nullptr)));
}

// Computed so that the compiler knows it to be the same in all lanes of a warp.
__device__ __forceinline__ int warpgroup_number() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

// Calls start(buffer, a, w, first) for each step of k. a and w are the offsets of that step's operands in the tile
// buffer, in units of 16 bytes. The first tile buffer must have arrived. On return, all started instructions have
// ended.
template <WgmmaTile tile, class F>
__device__ __forceinline__ void for_each_step(Block<tile>& block, const F& start) {
  using S = Shape<tile>;
  const int lane = threadIdx.x % 32;
  const auto multiply_buffer = [&](bool first) {
    const WgmmaOperand buffer(block.ring.buffer());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::kPieces * kSteps; ++step) {
      const int piece = step / kSteps, in_piece = step % kSteps;
      start(buffer, (piece * S::kAPiece >> 4) + in_piece * kWgmmaStep,
            (S::kABytes + piece * S::kWPiece >> 4) + in_piece * kWgmmaStep, first && step == 0);
    }
    wgmma_commit();
  };
  const auto release = [&](uint32_t free) {
    if (lane < tile.cluster) barrier_arrive_at(free, lane);
  };
  multiply_buffer(true);
  uint32_t previous = block.ring.free();
  block.ring.next();
  for (int round = 1; round < block.rounds; ++round) {
    block.ring.wait_full();
    multiply_buffer(false);
    wgmma_wait<1>();
    release(previous);
    previous = block.ring.free();
    block.ring.next();
  }
  wgmma_wait<0>();
  release(previous);
}

// Computes the sums of one warpgroup: kWgmmaGroupRows rows of a from a_first on, `width` columns from w_first on.
template <class T, int width, WgmmaTile tile>
__device__ __forceinline__ void multiply(const GemmArgs& args, const TileCoord& place, float (&sums)[tile.columns / 2],
                                         Block<tile>& block, int a_first, int w_first) {
  const auto start = [&](auto& part, const WgmmaOperand& buffer, int a, int w, bool first) {
    wgmma<T, width>(part, buffer.at(a + (a_first * kRowBytes >> 4)), buffer.at(w + (w_first * kRowBytes >> 4)), !first);
  };
  if constexpr (sizeof(T) == 1) {
    const Fp8Scales<T, width, false> scales(args, place.group, place.first_row + a_first + warpgroup_row(),
                                            place.first_column + w_first);
    add_scaled_pieces(block, reinterpret_cast<float(&)[width / 2]>(sums), scales, start);
  } else {
    for_each_step(block,
                  [&](const WgmmaOperand& buffer, int a, int w, bool first) { start(sums, buffer, a, w, first); });
  }
}

// Calls f(std::integral_constant<int, columns>) with the smallest number of columns of an instruction, up to `most`,
// that is at least `rows`.
template <int most, int columns = 8, class F>
__device__ __forceinline__ void with_columns_for(int rows, const F& f) {
  constexpr int kNext = columns < 64 ? columns + 8 : columns < 160 ? columns + 16 : columns + 32;
  if constexpr (columns >= most)
    f(std::integral_constant<int, most>{});
  else if (rows <= columns)
    f(std::integral_constant<int, columns>{});
  else
    with_columns_for<most, kNext>(rows, f);
}

// Computes and writes a tile by its transpose: each warpgroup has its share of w's rows in the tile buffers, 64 at a
// time, and all rows of a.
template <class T, class Out, WgmmaTile tile, bool swiglu>
__device__ __forceinline__ void multiply_transposed(const GemmArgs& args, const TileCoord& place, Block<tile>& block) {
  using S = Shape<tile>;
  constexpr int kParts = tile.columns / S::kMultipliers / kWgmmaGroupRows;
  const int warpgroup = warpgroup_number(), w_first = warpgroup * kParts * kWgmmaGroupRows;
  const int rows = min(place.end_row - place.first_row, tile.rows);
  constexpr bool direct = !swiglu && tile.rows <= kMaxDirectRows;
  with_columns_for<tile.rows>(rows, [&](auto width) {
    using DirectOut = DirectWriter<Out, direct ? width() : 8>;
    const DirectOut writer(args, place.first_row, direct ? rows : 0, place.first_column + w_first);
    float sums[kParts][width() / 2] = {};
    const auto w_row = [&](int w, int part) { return w + ((w_first + part * kWgmmaGroupRows) * kRowBytes >> 4); };
    if constexpr (sizeof(T) == 1) {
      static_assert(kParts == 1 && tile.rows <= 160, "the sums, and those of a piece, fill the registers");
      Fp8Scales<T, width(), true> scales(args, place.group, place.first_row,
                                         place.first_column + w_first + warpgroup_row());
      if constexpr (tile.rounds) {
        scales.set_a(round_rows<tile>(args, place, rows, block), rows);
        const WgmmaOperand rounded(block.rounded);
        add_scaled_pieces(block, sums[0], scales,
                          [&](auto& part, const WgmmaOperand& buffer, int a, int w, bool first) {
                            wgmma<T, width()>(part, buffer.at(w_row(w, 0)), rounded.at(a), !first);
                          });
      } else {
        add_scaled_pieces(block, sums[0], scales,
                          [&](auto& part, const WgmmaOperand& buffer, int a, int w, bool first) {
                            wgmma<T, width()>(part, buffer.at(w_row(w, 0)), buffer.at(a), !first);
                          });
      }
    } else {
      for_each_step(block, [&](const WgmmaOperand& buffer, int a, int w, bool first) {
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          wgmma<T, width()>(sums[part], buffer.at(w_row(w, part)), buffer.at(a), !first);
      });
    }
    if constexpr (direct) {
      writer.write(sums[0]);
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        TransposedWriter<Out, width(), swiglu>(args, place.first_row, rows,
                                               place.first_column + w_first + part * kWgmmaGroupRows,
                                               block.staged + warpgroup * 4 * S::kStagedBytes)
            .write(sums[part]);
    }
  });
}

// What the multiplying warps do, tile by tile.
template <class T, class Out, WgmmaTile tile, bool swiglu>
__device__ void multiply_tiles(const GemmArgs& args, bool float_out, Block<tile> block) {
  using S = Shape<tile>;
  const int warpgroup = warpgroup_number(), warp = threadIdx.x % kWarpgroup / 32;
  const uint32_t staged = block.staged + threadIdx.x / 32 * S::kStagedBytes;
  [[maybe_unused]] const bool transposable = takes_transposed(args, float_out, tile.rows);
  const bool add_halves = !swiglu && !float_out && args.epilogue == Epilogue::kAdd;
  // Computes `width` columns of the tile buffers' w, from column w_first on, for the rows from a_first on.
  const auto compute = [&](auto width, const TileCoord& place, int a_first, int w_first) {
    const Strip strip{place.first_row + a_first + warp * 16, place.end_row - (place.first_row + a_first + warp * 16),
                      place.first_column + w_first};
    const Writer<Out, width(), Epilogue::kAdd> adder(args, strip, staged);
    if (add_halves) adder.load_old();
    float sums[tile.columns / 2] = {};
    multiply<T, width()>(args, place, sums, block, a_first, w_first);
    if (strip.rows <= 0) return;
    if constexpr (swiglu) {
      Writer<Out, width(), Epilogue::kSwiglu>(args, strip, staged).write(sums);
    } else {
      if (args.bias.data != nullptr) add_bias<width()>(args, strip, sums);
      if (float_out)
        write_floats<width()>(args, strip, sums);
      else if (add_halves)
        adder.write(sums);
      else
        Writer<Out, width(), Epilogue::kStore>(args, strip, staged).write(sums);
    }
  };
  while (true) {
    block.ring.wait_full();
    const TileCoord place = TileCoord::load(block.rank, block.place());
    if (place.kind == TileCoord::kEnd) return;
    if constexpr (tile.cluster > 1)
      if (transposable && place.kind != TileCoord::kPair) {  // rows of a group outside its pairs
        multiply_transposed<T, Out, tile, swiglu>(args, place, block);
        continue;
      }
    if (S::kMultipliers > 1 && place.kind == TileCoord::kHalf)
      compute(std::integral_constant<int, tile.columns / S::kMultipliers>{}, place, 0,
              warpgroup * tile.columns / S::kMultipliers);
    else
      compute(std::integral_constant<int, tile.columns>{}, place, warpgroup * kWgmmaGroupRows, 0);
  }
}

template <class T, class Out, WgmmaTile tile, bool swiglu>
__device__ void multiply_transposed_tiles(const GemmArgs& args, Block<tile> block) {
  while (true) {
    block.ring.wait_full();
    const TileCoord place = TileCoord::load(block.rank, block.place());
    if (place.kind == TileCoord::kEnd) return;
    multiply_transposed<T, Out, tile, swiglu>(args, place, block);
  }
}

// The rows of a TMA box of a. A box takes time for each of its rows, including those outside of a, and some fixed time.
// So it has the rows of most groups, or a quarter of a tile that may have any number of rows.
int rows_of_a_box(const GemmArgs& args, WgmmaTile tile) {
  if (tile.transposed) return std::max(tile.rows / 4, 8);
  const int64_t rows = args.m / std::min(args.m, args.groups);
  if (args.offsets == nullptr) return static_cast<int>(std::min<int64_t>(ceil_divide(rows, 8) * 8, kWgmmaGroupRows));
  return rows <= 8 ? 16 : rows <= 16 ? 32 : kWgmmaGroupRows;
}

template <class T, class Out, WgmmaTile tile, bool swiglu>
void launch_tile(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out) {
  using S = Shape<tile>;
  constexpr auto kernel =
      gemm_wgmma_kernel<T, Out, tile.rows, tile.columns, tile.cluster, tile.transposed, tile.rounds, swiglu>;
  allow_shared_bytes<kernel, S::kSharedBytes>();
  const int box_rows = rows_of_a_box(args, tile);
  const CUtensorMap a_map = matrix_map(args.a, act, args.m, args.k, box_rows, kDepth<T>);
  const CUtensorMap w_map = matrices_map(args.w.data, act, args.groups, args.n, args.k, S::kWBox, kDepth<T>);
  // With pairs, every group may have two row tiles outside them.
  const int64_t row_units = tile.cluster == 1 || tile.transposed
                                ? row_tile_bound(args.m, args.groups, tile.rows)
                                : args.m / (tile.rows * tile.cluster) + 2 * std::min(args.m, args.groups);
  const int64_t units = row_units * ceil_divide(args.n, tile.columns);
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount) - args.reserved_sms;
  const auto clusters = std::min<int64_t>(units, multiprocessors / tile.cluster);
  launch_dependent("gemm_wgmma_kernel", kernel,
                   {clusters * tile.cluster, S::kThreads, S::kSharedBytes, static_cast<unsigned>(tile.cluster)}, stream,
                   a_map, w_map, args, box_rows, float_out);
}

// Launches the kernel of the tile, which is one of `tiles`.
template <class T, class Out, bool swiglu, const auto& tiles, size_t... i>
void launch_listed(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out, WgmmaTile tile,
                   std::index_sequence<i...>) {
  const bool found =
      ((tile == tiles[i] && (launch_tile<T, Out, tiles[i], swiglu>(stream, args, act, float_out), true)) || ...);
  if (!found) CUDA_CHECK(cudaErrorInvalidValue);
}
template <class T, class Out, bool swiglu, const auto& tiles>
void launch_listed(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out, WgmmaTile tile) {
  launch_listed<T, Out, swiglu, tiles>(stream, args, act, float_out, tile,
                                       std::make_index_sequence<std::size(tiles)>{});
}

// Launches the kernel of the tile, which must be in the list for its kind and the epilogue.
template <class T, class Out, const auto& plain, const auto& gated, const auto& transposed>
void launch_product(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out, WgmmaTile tile) {
  if (tile.transposed && !takes_transposed(args, float_out, tile.rows)) CUDA_CHECK(cudaErrorInvalidValue);
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  if (tile.transposed && swiglu)
    launch_listed<T, Out, true, transposed>(stream, args, act, false, tile);
  else if (tile.transposed)
    launch_listed<T, Out, false, transposed>(stream, args, act, false, tile);
  else if (swiglu)
    launch_listed<T, Out, true, gated>(stream, args, act, false, tile);
  else
    launch_listed<T, Out, false, plain>(stream, args, act, float_out, tile);
}

}  // namespace

}  // namespace lfm2
