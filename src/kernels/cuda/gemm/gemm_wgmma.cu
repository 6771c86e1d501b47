// Matrix products of bf16 and fp16 on Hopper's tensor cores; dense and grouped. Each output is summed over k in steps
// of 16 in order, in one fp32 accumulator, whatever the tile, so the bits of a row do not depend on the rows beside it.
//
// One thread block stays on each multiprocessor and walks through tiles: one warp loads tile buffers ahead of two
// warpgroups that multiply. The two blocks of a cluster work on two tiles that share columns of w, or rows of a; each
// block loads half of what is shared for both.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/gemm/gemm_wgmma.h"
#include "kernels/cuda/gemm/gemm_wgmma_out.cuh"
#include "kernels/cuda/gemm/gemm_wgmma_walk.cuh"
#include "kernels/cuda/gemm/tensor_map.h"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2 {

namespace {

constexpr int kDepth = 64;  // elements of k in one tile buffer: one swizzled row of 128 bytes
constexpr int kSteps = kDepth / 16;
constexpr int kRowBytes = kDepth * 2;
constexpr int kWarpgroup = 128;  // threads
constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kWarpgroup;
constexpr int kLoaderRegisters = 56, kMultiplierRegisters = 224;
constexpr int kOutBytes = kMultipliers * 4 * 2 * kPassBytes;  // each warp has two passes, in turn
constexpr int kSharedLimit = 227 * 1024;

template <int columns>
struct TileBuffer {
  static constexpr int kABytes = kWgmmaRows * kRowBytes, kBytes = kABytes + columns * kRowBytes;
  static constexpr int kNoteBytes = 32;  // bytes for a tile's place, and the barriers full and free
  static constexpr int kCount = (kSharedLimit - 1024 - kOutBytes) / (kBytes + kNoteBytes);
  static constexpr int kSharedBytes = kCount * (kBytes + kNoteBytes) + kOutBytes + 1024;  // 1024 to begin on 1024
};

// The next tile buffer of the ring, and the parity of this round through the ring.
template <int buffers>
struct Turn {
  int buffer = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++buffer == buffers) {
      buffer = 0;
      parity ^= 1;
    }
  }
};

// What the multiplying warps must know of a tile. It comes with the tile's first tile buffer.
struct Place {
  int first_row, end_row, first_column;
  int kind;  // 0: a whole tile; 1: half a tile; 2: there are no more tiles

  __device__ static Place load(int reader, uint32_t address) {
    const uint4 bits = load_shared_by(reader, address);
    return {static_cast<int>(bits.x), static_cast<int>(bits.y), static_cast<int>(bits.z), static_cast<int>(bits.w)};
  }
  __device__ void store(uint32_t address) const {
    store_shared(address, {static_cast<uint32_t>(first_row), static_cast<uint32_t>(end_row),
                           static_cast<uint32_t>(first_column), static_cast<uint32_t>(kind)});
  }
};

struct Block {
  uint32_t buffers, places;  // addresses in shared memory, one for each tile buffer
  uint32_t full, free;       // barriers; all multiplying warps of the cluster arrive at `free`
  int rank;                  // of the block in its cluster
  int unit, units;           // the first unit; from a unit to the next
  int depths;                // number of tile buffers that k fills
};

template <int columns, int cluster>
__device__ void load_buffers(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                             const Block& block) {
  using S = TileBuffer<columns>;
  constexpr int kHalfA = kWgmmaHalfRows * kRowBytes, kWBox = columns / cluster, kWBytes = kWBox * kRowBytes;
  constexpr uint16_t kBoth = 3;
  TileWalk<columns, cluster> walk(args);
  Turn<S::kCount> turn;
  TileWork work;
  const auto wait_free = [&] { barrier_wait(block.free + turn.buffer * 8, turn.parity ^ 1); };
  for (int unit = block.unit; walk.find(unit, block.rank, work); unit += block.units) {
    for (int depth = 0; depth < block.depths; ++depth, turn.next()) {
      wait_free();
      if (threadIdx.x % 32 == 0) {
        const uint32_t full = block.full + turn.buffer * 8, a = block.buffers + turn.buffer * S::kBytes;
        const uint32_t w = a + S::kABytes;
        const int x = depth * kDepth;
        if (depth == 0)
          Place{work.first_row, work.end_row, work.first_column, work.half}.store(block.places + turn.buffer * 16);
        barrier_expect(full, S::kBytes - (work.half ? kHalfA : 0));
        if (cluster == 2 && !work.same_columns && !work.half) {
          load_box_multicast(a + block.rank * kHalfA, a_map, full, kBoth, x,
                             work.first_row + block.rank * kWgmmaHalfRows);
        } else {
          load_box(a, a_map, full, x, work.first_row);
          if (!work.half) load_box(a + kHalfA, a_map, full, x, work.first_row + kWgmmaHalfRows);
        }
        if (cluster == 2 && work.same_columns) {
          load_box_multicast(w + block.rank * kWBytes, w_map, full, kBoth, x, work.first_column + block.rank * kWBox,
                             work.group);
        } else {
#pragma unroll
          for (int i = 0; i < cluster; ++i)
            load_box(w + i * kWBytes, w_map, full, x, work.first_column + i * kWBox, work.group);
        }
      }
      __syncwarp();
    }
  }
  wait_free();
  if (threadIdx.x == 0) {
    Place{0, 0, 0, 2}.store(block.places + turn.buffer * 16);
    barrier_arrive(block.full + turn.buffer * 8);
  }
}

// Computes the sums of one warpgroup: 64 rows and `width` columns. The first tile buffer must have come.
template <class T, int columns, int cluster, int width>
__device__ void multiply(float (&sums)[columns / 2], const Block& block, Turn<TileBuffer<columns>::kCount>& turn,
                         int a_offset, int w_offset) {
  using S = TileBuffer<columns>;
  const int lane = threadIdx.x % 32;
  const auto release = [&](int buffer) {
    if (lane < cluster) barrier_arrive_at(block.free + buffer * 8, lane);
  };
  const auto multiply_buffer = [&](bool first) {
    const uint32_t buffer = block.buffers + turn.buffer * S::kBytes;
    const uint64_t a = wgmma_operand(buffer + a_offset), w = wgmma_operand(buffer + S::kABytes + w_offset);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      wgmma<T, width>(sums, a + step * kWgmmaStep, w + step * kWgmmaStep, !first || step > 0);
    wgmma_commit();
  };
  multiply_buffer(true);
  int previous = turn.buffer;
  turn.next();
  for (int depth = 1; depth < block.depths; ++depth) {
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    multiply_buffer(false);
    wgmma_wait<1>();
    release(previous);
    previous = turn.buffer;
    turn.next();
  }
  wgmma_wait<0>();
  release(previous);
}

template <class T, int columns, int cluster, bool swiglu>
__device__ void multiply_tiles(const GemmArgs& args, bool float_out, const Block& block, uint32_t staged) {
  const int warpgroup = threadIdx.x / kWarpgroup - 1, warp = threadIdx.x % kWarpgroup / 32;
  Turn<TileBuffer<columns>::kCount> turn;
  const bool add_halves = !swiglu && !float_out && args.epilogue == Epilogue::kAdd;
  // Computes `width` columns of the tile buffer's w, from column w_first on, for the rows from a_first on.
  const auto compute = [&](auto width, const Place& place, int a_first, int w_first) {
    const Strip strip{place.first_row + a_first + warp * 16, place.end_row - (place.first_row + a_first + warp * 16),
                      place.first_column + w_first};
    const Writer<T, width(), Epilogue::kAdd> adder(args, strip, staged);
    if (add_halves) adder.load_old();
    float sums[columns / 2] = {};
    multiply<T, columns, cluster, width()>(sums, block, turn, a_first * kRowBytes, w_first * kRowBytes);
    if (strip.rows <= 0) return;
    if constexpr (swiglu) {
      Writer<T, width(), Epilogue::kSwiglu>(args, strip, staged).write(sums);
    } else {
      if (args.bias.data != nullptr) add_bias<width()>(args, strip, sums);
      if (float_out)
        write_floats<width()>(args, strip, sums);
      else if (add_halves)
        adder.write(sums);
      else
        Writer<T, width(), Epilogue::kStore>(args, strip, staged).write(sums);
    }
  };
  while (true) {
    barrier_wait(block.full + turn.buffer * 8, turn.parity);
    const Place place = Place::load(block.rank, block.places + turn.buffer * 16);
    if (place.kind == 2) return;
    if (place.kind == 1)
      compute(std::integral_constant<int, columns / 2>{}, place, 0, warpgroup * columns / 2);
    else
      compute(std::integral_constant<int, columns>{}, place, warpgroup * kWgmmaHalfRows, 0);
  }
}

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a and w of type T, out
//   of type T or fp32 (`float_out`), bias of any type; a_map and w_map describe a and w to the copy engine.
// - block: stays on its multiprocessor and walks through tiles of kWgmmaRows rows and `columns` columns (TileWalk),
//   together with the other block of its cluster where there are two.
// - thread: the first warp loads (load_buffers); two warpgroups multiply, 64 rows each, and write (multiply_tiles);
//   the other threads of the first warpgroup do nothing, as registers go by warpgroups.
// - alignment: n and k in octets (kSwiglu: n in sixteens), everything on 16 bytes.
template <class T, int columns, int cluster, bool swiglu>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ GemmArgs args, bool float_out) {
  using S = TileBuffer<columns>;
  extern __shared__ char shared[];
  Block block;
  block.buffers = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t out = block.buffers + S::kCount * S::kBytes;
  block.places = out + kOutBytes;
  block.full = block.places + S::kCount * 16;
  block.free = block.full + S::kCount * 8;
  block.rank = cluster == 1 ? 0 : static_cast<int>(cluster_rank());
  block.unit = static_cast<int>(blockIdx.x) / cluster;
  block.units = static_cast<int>(gridDim.x) / cluster;
  block.depths = static_cast<int>((args.k + kDepth - 1) / kDepth);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&a_map);
    prefetch_tensor_map(&w_map);
    for (int i = 0; i < S::kCount; ++i) {
      barrier_init(block.full + i * 8, 1);
      barrier_init(block.free + i * 8, kMultipliers * 4 * cluster);
    }
    barrier_init_fence();
  }
  if constexpr (cluster > 1)
    cluster_sync();
  else
    __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_begin();
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoaderRegisters>();
    if (threadIdx.x < 32) load_buffers<columns, cluster>(args, &a_map, &w_map, block);
  } else {
    take_registers<kMultiplierRegisters>();
    const uint32_t warp = threadIdx.x / 32 - kWarpgroup / 32;
    multiply_tiles<T, columns, cluster, swiglu>(args, float_out, block, out + warp * 2 * kPassBytes);
  }
  if constexpr (cluster > 1) cluster_sync();  // the other block's copies and arrivals may still come
}

int multiprocessors() {
  int device = 0, count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <class T, int columns, int cluster, bool swiglu>
void launch_tile(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out) {
  using S = TileBuffer<columns>;
  const auto kernel = gemm_wgmma_kernel<T, columns, cluster, swiglu>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes));
  const CUtensorMap a_map = matrix_map(args.a, act, args.m, args.k, kWgmmaHalfRows, kDepth);
  const CUtensorMap w_map = matrices_map(args.w.data, act, args.groups, args.n, args.k, columns / cluster, kDepth);
  // Every group may have two row tiles that are in no pair.
  const int64_t row_units = args.m / (kWgmmaRows * cluster) + 2 * std::min(args.m, args.groups);
  const int64_t units = row_units * ceil_divide(args.n, columns);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {cluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // hides the setup, which takes a microsecond
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min<int64_t>(units, multiprocessors() / cluster) * cluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, a_map, w_map, args, float_out));
}

}  // namespace

WgmmaTile choose_wgmma_tile(const GemmArgs& args, int multiprocessors) {
  const bool grouped = args.offsets != nullptr;
  // Clusters save memory traffic, which matters where many groups' weights are read, and lose time where there is
  // little to do.
  const WgmmaTile wide{256, grouped || args.epilogue == Epilogue::kSwiglu ? 2 : 1};
  if (args.epilogue == Epilogue::kSwiglu) return wide;
  const int64_t row_tiles = std::max(ceil_divide(args.m, kWgmmaRows), std::min(args.m, args.groups));
  const auto cost = [&](int columns) {  // measured: a tile takes the time of its columns and about 24 more
    return ceil_divide(row_tiles * ceil_divide(args.n, columns), multiprocessors) * (columns + 24);
  };
  WgmmaTile best = wide;
  for (const WgmmaTile tile : {WgmmaTile{192, 1}, WgmmaTile{128, 1}})
    if (!(grouped && tile.columns == 192) && cost(tile.columns) < cost(best.columns)) best = tile;
  return best;
}

void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out, WgmmaTile tile) {
  if (args.m == 0 || args.n == 0 || args.groups == 0) return;
  const bool float_out = out == DType::kF32;
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    if (args.epilogue == Epilogue::kSwiglu) return launch_tile<T, 256, 2, true>(stream, args, act, false);
    if (tile.columns == 128) return launch_tile<T, 128, 1, false>(stream, args, act, float_out);
    if (tile.columns == 192) return launch_tile<T, 192, 1, false>(stream, args, act, float_out);
    if (tile.cluster == 1) return launch_tile<T, 256, 1, false>(stream, args, act, float_out);
    launch_tile<T, 256, 2, false>(stream, args, act, float_out);
  });
}

void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out) {
  launch_gemm_wgmma(stream, args, act, out, choose_wgmma_tile(args, multiprocessors()));
}

}  // namespace lfm2
