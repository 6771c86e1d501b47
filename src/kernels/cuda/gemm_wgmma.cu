// Matrix products of bf16 and fp16 on Hopper's tensor cores; dense and grouped. Each output is summed over k in steps
// of 16 in order, in one fp32 accumulator, whatever the tile: the bits of a row do not depend on the rows beside it.
//
// Thread blocks stay, one on a multiprocessor, and walk through the tiles: one warp loads stages of k ahead of two
// warpgroups that multiply. The two blocks of a cluster work on two tiles that share columns of w, or rows of a; each
// loads half of what is shared for both.
#include <algorithm>

#include "kernels/cuda/device_types.cuh"
#include "kernels/cuda/gemm_wgmma.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_map.h"

namespace lfm2 {

namespace {

constexpr int kRows = 128;        // of a tile; the last tile of a group may have half of them
constexpr int kWarpgroupRows = 64;
constexpr int kDepth = 64;        // of k, in one stage: 128 bytes, one swizzled row
constexpr int kSteps = kDepth / 16;
constexpr int kRowBytes = kDepth * 2;
constexpr int kWarpgroup = 128;   // threads
constexpr int kMultipliers = 2;   // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kWarpgroup;
constexpr int kLoaderRegisters = 40, kMultiplierRegisters = 232;
constexpr int kBandRows = 2048;   // tiles of so many rows take turns at each piece of w, which then stays in L2
constexpr int kPassColumns = 64;  // of out, in one pass through a warp's shared memory: 16 rows of 128 bytes
constexpr int kPassBytes = 16 * kPassColumns * 2;
constexpr int kOutBytes = kMultipliers * 4 * 2 * kPassBytes;  // two passes a warp, in turn
constexpr int kSharedLimit = 227 * 1024;

template <int columns>
struct Stage {
  static constexpr int kABytes = kRows * kRowBytes, kBytes = kABytes + columns * kRowBytes;
  static constexpr int kBarrierBytes = 16;  // full and free
  static constexpr int kCount = (kSharedLimit - 1024 - kOutBytes) / (kBytes + kBarrierBytes);
  static constexpr int kSharedBytes = kCount * (kBytes + kBarrierBytes) + kOutBytes + 1024;  // to begin on 1024
};

// A stage of the ring, and the parity of this round through it.
template <int stages>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// What one block computes: kRows rows, or half of them, and `columns` columns.
struct Work {
  int group;
  int first_row, end_row;  // of a and out; end_row is the group's end, not the tile's
  int first_column;
  bool half;         // at most kRows / 2 rows: the warpgroups split the columns
  bool same_columns;  // as the other block of the cluster, which has the next rows; otherwise the next columns
};

// Units of work, one for each cluster in turn, are counted group by group; in a group first pairs of row tiles, band by
// band, then column by column, then row by row; then the one or two row tiles that are left, for pairs of column tiles.
// Every warp finds its unit by itself: a prefix sum over the groups, 32 at a time, kept in the lanes.
template <int columns, int cluster>
class Walk {
 public:
  __device__ explicit Walk(const GemmArgs& args)
      : offsets_(args.offsets),
        groups_(static_cast<int>(args.groups)),
        rows_(static_cast<int>(args.m)),
        column_tiles_(static_cast<int>((args.n + columns - 1) / columns)) {
    read_groups();
  }

  // Units are asked for in rising order. False behind the last.
  __device__ bool find(int unit, int rank, Work& work) {
    while (true) {
      const unsigned reached = __ballot_sync(0xffffffffu, before_ + upto_ > unit);
      if (reached != 0) {
        const int owner = __ffs(reached) - 1;
        const int first = __shfl_sync(0xffffffffu, first_, owner), end = __shfl_sync(0xffffffffu, end_, owner);
        const int previous = __shfl_sync(0xffffffffu, upto_, owner > 0 ? owner - 1 : 0);
        place(unit - before_ - (owner > 0 ? previous : 0), rank, first, end, work);
        work.group = base_ + owner;
        return true;
      }
      before_ += __shfl_sync(0xffffffffu, upto_, 31);
      base_ += 32;
      if (base_ >= groups_) return false;
      read_groups();
    }
  }

 private:
  static constexpr int kPairRows = kRows * cluster;
  static constexpr int kBand = kBandRows / kPairRows;

  // A second tile that would be half empty is better off alone.
  __device__ static int pairs_of(int rows) {
    return cluster == 1 ? (rows + kRows - 1) / kRows : (rows + kWarpgroupRows - 1) / kPairRows;
  }
  __device__ static int singles_of(int rows, int pairs) {
    const int left = rows - pairs * kPairRows;
    return cluster == 1 || left <= 0 ? 0 : (left + kRows - 1) / kRows;
  }

  __device__ void read_groups() {
    const int group = base_ + static_cast<int>(threadIdx.x % 32);
    first_ = end_ = 0;
    if (group < groups_) {
      first_ = offsets_ == nullptr ? 0 : offsets_[group];
      end_ = offsets_ == nullptr ? rows_ : offsets_[group + 1];
    }
    const int pairs = pairs_of(end_ - first_);
    upto_ = pairs * column_tiles_ + singles_of(end_ - first_, pairs) * ((column_tiles_ + cluster - 1) / cluster);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, upto_, step);
      if (threadIdx.x % 32 >= step) upto_ += left;
    }
  }

  __device__ void place(int unit, int rank, int first, int end, Work& work) const {
    const int pairs = pairs_of(end - first);
    int column_tile;
    work.same_columns = unit < pairs * column_tiles_;
    if (work.same_columns) {
      const int band = unit / (kBand * column_tiles_), in_band = unit - band * kBand * column_tiles_;
      const int height = min(kBand, pairs - band * kBand);
      column_tile = in_band / height;
      work.first_row = first + (band * kBand + in_band - column_tile * height) * kPairRows + rank * kRows;
    } else {
      const int local = unit - pairs * column_tiles_, singles = singles_of(end - first, pairs);
      column_tile = local / singles;
      work.first_row = first + pairs * kPairRows + (local - column_tile * singles) * kRows;
      column_tile = column_tile * cluster + rank;
    }
    work.first_column = column_tile * columns;
    work.end_row = end;
    work.half = end - work.first_row <= kWarpgroupRows && (cluster == 1 || !work.same_columns);
  }

  const int32_t* offsets_;
  int groups_, rows_, column_tiles_;
  int base_ = 0, before_ = 0;    // the lanes' first group; units before it
  int first_ = 0, end_ = 0;      // rows of the lane's group
  int upto_ = 0;                 // units of the lanes' groups up to this one's
};

struct Block {
  uint32_t stages, full, free;  // in shared memory; free: where all multiplying warps of the cluster say so
  int rank;                     // in the cluster
  int unit, units;              // the first one; from one to the next
  int depths;                   // stages of k
};

template <int columns, int cluster>
__device__ void load_stages(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                            const Block& block) {
  using S = Stage<columns>;
  constexpr int kHalfA = kWarpgroupRows * kRowBytes, kWBox = columns / cluster, kWBytes = kWBox * kRowBytes;
  constexpr uint16_t kBoth = 3;
  Walk<columns, cluster> walk(args);
  Turn<S::kCount> turn;
  Work work;
  for (int unit = block.unit; walk.find(unit, block.rank, work); unit += block.units) {
    for (int depth = 0; depth < block.depths; ++depth, turn.next()) {
      barrier_wait(block.free + turn.stage * 8, turn.parity ^ 1);
      if (threadIdx.x % 32 == 0) {
        const uint32_t full = block.full + turn.stage * 8, a = block.stages + turn.stage * S::kBytes;
        const uint32_t w = a + S::kABytes;
        const int x = depth * kDepth;
        barrier_expect(full, S::kBytes - (work.half ? kHalfA : 0));
        if (cluster == 2 && !work.same_columns && !work.half) {
          load_box_multicast(a + block.rank * kHalfA, a_map, full, kBoth, x,
                             work.first_row + block.rank * kWarpgroupRows);
        } else {
          load_box(a, a_map, full, x, work.first_row);
          if (!work.half) load_box(a + kHalfA, a_map, full, x, work.first_row + kWarpgroupRows);
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
}

// The sums of one warpgroup: 64 rows, `width` columns. `lead`: how many stages the first warpgroup goes ahead.
template <class T, int columns, int cluster, int width, int lead, class Meanwhile>
__device__ void multiply(float (&sums)[columns / 2], const Block& block, Turn<Stage<columns>::kCount>& turn,
                         int a_offset, int w_offset, Meanwhile&& meanwhile) {
  using S = Stage<columns>;
  const int warpgroup = threadIdx.x / kWarpgroup - 1, lane = threadIdx.x % 32;
  const bool staggered = lead > 0 && block.depths >= 2 * S::kCount;
  const auto release = [&](int stage) {
    if (lane < cluster) barrier_arrive_at(block.free + stage * 8, lane);
  };
  const auto multiply_stage = [&](bool first) {
    barrier_wait(block.full + turn.stage * 8, turn.parity);
    const uint32_t stage = block.stages + turn.stage * S::kBytes;
    const uint64_t a = wgmma_operand(stage + a_offset), w = wgmma_operand(stage + S::kABytes + w_offset);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      wgmma<T, width>(sums, a + step * kWgmmaStep, w + step * kWgmmaStep, !first || step > 0);
    wgmma_commit();
  };
  const auto let_second_go = [&](int depth) {
    if (staggered && warpgroup == 0 && depth == lead - 1) named_barrier_arrive(1, kMultipliers * kWarpgroup);
  };
  if (staggered && warpgroup == 1) named_barrier_sync(1, kMultipliers * kWarpgroup);
  multiply_stage(true);
  let_second_go(0);
  int previous = turn.stage;
  turn.next();
  for (int depth = 1; depth < block.depths; ++depth) {
    multiply_stage(false);
    let_second_go(depth);
    wgmma_wait<1>();
    release(previous);
    previous = turn.stage;
    turn.next();
  }
  meanwhile();
  wgmma_wait<0>();
  release(previous);
}

// exp's and the division's last bits are far below the rounding to 16 bits. -inf gives NaN, as x / (1 + exp(-x)) does.
__device__ inline float silu(float x) {
  float inverse;
  asm("rcp.approx.f32 %0, %1;\n" : "=f"(inverse) : "f"(1.0f + __expf(-x)));
  return x * inverse;
}

template <class T>
__device__ uint32_t pack(float even, float odd) {
  const T pair[2] = {rounded<T>(even), rounded<T>(odd)};
  return *reinterpret_cast<const uint32_t*>(pair);
}
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float even, float odd) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(even, odd);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ inline uint32_t pack<__half>(float even, float odd) {
  const __half2 pair = __floats2half2_rn(even, odd);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float2 unpack(uint32_t bits, __nv_bfloat16) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bits));
}
__device__ inline float2 unpack(uint32_t bits, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

// A warp's 16 rows and where they go.
struct Strip {
  int first_row, rows;  // rows below 16: the rest belongs to others
  int first_column;     // of the sums
};

template <class B, int width, int size>
__device__ void add_bias(const B* bias, int n, const Strip& strip, float (&sums)[size]) {
  const int lane_column = strip.first_column + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < width / 2; ++i) {
    const int column = lane_column + i / 4 * 8 + i % 2;
    if (column < n) sums[i] += to_f32(bias[column]);
  }
}

template <int width, int size>
__device__ void add_bias(const GemmArgs& args, const Strip& strip, float (&sums)[size]) {
  const int n = static_cast<int>(args.n);
  if (args.bias.dtype == DType::kBf16)
    add_bias<__nv_bfloat16, width>(static_cast<const __nv_bfloat16*>(args.bias.data), n, strip, sums);
  else if (args.bias.dtype == DType::kF16)
    add_bias<__half, width>(static_cast<const __half*>(args.bias.data), n, strip, sums);
  else
    add_bias<float, width>(static_cast<const float*>(args.bias.data), n, strip, sums);
}

// fp32: straight from the registers, 32 bytes of a row at a time.
template <int width, int size>
__device__ void write_floats(const GemmArgs& args, const Strip& strip, const float (&sums)[size]) {
  const int lane = threadIdx.x % 32, column = strip.first_column + lane % 4 * 2;
  const bool add = args.epilogue == Epilogue::kAdd;
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const int row = lane / 4 + lower * 8;
    if (row >= strip.rows) continue;
    float* out = static_cast<float*>(args.out) + static_cast<int64_t>(strip.first_row + row) * args.n + column;
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      if (column + j * 8 >= args.n) continue;
      float2 value = {sums[j * 4 + lower * 2], sums[j * 4 + lower * 2 + 1]};
      float2* target = reinterpret_cast<float2*>(out + j * 8);
      if (add) {
        const float2 old = *target;
        value = {value.x + old.x, value.y + old.y};
      }
      *target = value;
    }
  }
}

// 16 bits: a few columns at a time through the warp's shared memory, so that rows are written in pieces of 128 bytes.
template <class T, int width, bool swiglu, int size>
__device__ void write_halves(const GemmArgs& args, const Strip& strip, uint32_t staged, const float (&sums)[size]) {
  constexpr int kWidth = swiglu ? width / 2 : width, kPasses = (kWidth + kPassColumns - 1) / kPassColumns;
  constexpr int kPassRows = 4;  // of out, in one instruction
  const int lane = threadIdx.x % 32;
  const int n = static_cast<int>(swiglu ? args.n / 2 : args.n);
  const int chunk = lane % 8, row0 = lane / 8;
  const int first_column = (swiglu ? strip.first_column / 2 : strip.first_column) + chunk * 8;
  T* out = static_cast<T*>(args.out) + static_cast<int64_t>(strip.first_row + row0) * n + first_column;
  // Of 16 rows of eight chunks; where the lane's row of the four matrices begins that are stored together, and the
  // chunk's swizzle.
  const uint32_t matrix_row = staged + lane % 16 * 128;
  const int matrix_chunk = lane / 16, swizzle = lane % 8;
  const bool add = !swiglu && args.epilogue == Epilogue::kAdd;
  const auto valid = [&](int pass, int i) {
    return row0 + i * kPassRows < strip.rows && pass * kPassColumns + chunk * 8 < kWidth &&
           first_column + pass * kPassColumns < n;
  };
  const auto slot = [&](int pass) { return static_cast<uint32_t>(pass % 2 * kPassBytes); };
  const auto row_address = [&](int pass, int i) {
    const int row = row0 + i * kPassRows;
    return staged + slot(pass) + row * 128 + (chunk ^ (row & 7)) * 16;
  };
  const auto target = [&](int pass, int i) {
    return reinterpret_cast<uint4*>(out + static_cast<int64_t>(i) * kPassRows * n + pass * kPassColumns);
  };
  uint4 old[16 / kPassRows] = {};
  const auto load_old = [&](int pass) {
#pragma unroll
    for (int i = 0; i < 16 / kPassRows; ++i)
      if (valid(pass, i)) old[i] = *target(pass, i);
  };
  if (add) load_old(0);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    if (add) {
#pragma unroll
      for (int i = 0; i < 16 / kPassRows; ++i) store_shared(row_address(pass, i), old[i]);
      if (pass + 1 < kPasses) load_old(pass + 1);
      __syncwarp();
    }
#pragma unroll
    for (int piece = 0; piece < kPassColumns / 16; ++piece) {
      const int column = pass * kPassColumns + piece * 16;
      if (column >= kWidth) continue;
      const uint32_t address = matrix_row + slot(pass) + ((piece * 2 + matrix_chunk) ^ swizzle) * 16;
      uint32_t words[4];  // upper and lower rows of the first eight columns, then of the other eight
      if constexpr (swiglu) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int gate = (column + i / 2 * 8) + i % 2 * 2, up = gate + 4;
          words[i] = pack<T>(silu(sums[gate]) * sums[up], silu(sums[gate + 1]) * sums[up + 1]);
        }
      } else {
        uint32_t before[4];
        if (add) load_matrices(before, address);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int first = column / 2 + i * 2;
          const float2 more = add ? unpack(before[i], T{}) : float2{0, 0};
          words[i] = add ? pack<T>(sums[first] + more.x, sums[first + 1] + more.y)
                         : pack<T>(sums[first], sums[first + 1]);
        }
      }
      store_matrices(address, words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 / kPassRows; ++i)
      if (valid(pass, i)) *target(pass, i) = load_shared(row_address(pass, i));
  }
  __syncwarp();
}

template <class T, int columns, int cluster, bool swiglu, int lead>
__device__ void multiply_tiles(const GemmArgs& args, bool float_out, const Block& block, uint32_t staged) {
  const int warpgroup = threadIdx.x / kWarpgroup - 1, warp = threadIdx.x % kWarpgroup / 32;
  Walk<columns, cluster> walk(args);
  Turn<Stage<columns>::kCount> turn;
  float sums[columns / 2];
  Work work, next;
  int unit = block.unit;
  bool more = walk.find(unit, block.rank, next);
  const auto find_next = [&] { more = walk.find(unit += block.units, block.rank, next); };
  const auto write = [&](auto width, const Strip& strip) {
    if (strip.rows <= 0) return;
    if constexpr (swiglu) {
      write_halves<T, width(), true>(args, strip, staged, sums);
    } else {
      if (args.bias.data != nullptr) add_bias<width()>(args, strip, sums);
      if (float_out)
        write_floats<width()>(args, strip, sums);
      else
        write_halves<T, width(), false>(args, strip, staged, sums);
    }
  };
  while (more) {
    work = next;
    Strip strip{work.first_row + warp * 16, 0, work.first_column};
    if (work.half) {
      multiply<T, columns, cluster, columns / 2, lead>(sums, block, turn, 0, warpgroup * columns / 2 * kRowBytes,
                                                       find_next);
      strip.first_column += warpgroup * columns / 2;
      strip.rows = work.end_row - strip.first_row;
      write(std::integral_constant<int, columns / 2>{}, strip);
    } else {
      multiply<T, columns, cluster, columns, lead>(sums, block, turn, warpgroup * kWarpgroupRows * kRowBytes, 0,
                                                   find_next);
      strip.first_row += warpgroup * kWarpgroupRows;
      strip.rows = work.end_row - strip.first_row;
      write(std::integral_constant<int, columns>{}, strip);
    }
  }
}

template <class T, int columns, int cluster, bool swiglu, int lead>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ GemmArgs args, bool float_out) {
  using S = Stage<columns>;
  extern __shared__ char shared[];
  Block block;
  block.stages = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t out = block.stages + S::kCount * S::kBytes;
  block.full = out + kOutBytes;
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
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoaderRegisters>();
    if (threadIdx.x < 32) load_stages<columns, cluster>(args, &a_map, &w_map, block);
  } else {
    take_registers<kMultiplierRegisters>();
    const uint32_t warp = threadIdx.x / 32 - kWarpgroup / 32;
    multiply_tiles<T, columns, cluster, swiglu, lead>(args, float_out, block, out + warp * 2 * kPassBytes);
  }
  if constexpr (cluster > 1) cluster_sync();  // the other block's copies and arrivals come here
}

int multiprocessors() {
  int device = 0, count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <class T, int columns, int cluster, bool swiglu, int lead>
void launch_tile(cudaStream_t stream, const GemmArgs& args, DType act, bool float_out) {
  using S = Stage<columns>;
  const auto kernel = gemm_wgmma_kernel<T, columns, cluster, swiglu, lead>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes));
  const int64_t k = std::max<int64_t>(args.k, 8);  // a map needs columns, also where none is read
  const CUtensorMap a_map = matrix_map(args.a, act, args.m, k, kWarpgroupRows, kDepth);
  const CUtensorMap w_map = matrices_map(args.w.data, act, args.groups, args.n, k, columns / cluster, kDepth);
  // Every group may leave two row tiles that fill no pair.
  const int64_t row_units = args.m / (kRows * cluster) + 2 * std::min(args.m, args.groups);
  const int64_t units = row_units * ceil_divide(args.n, columns);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min<int64_t>(units, multiprocessors() / cluster) * cluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, a_map, w_map, args, float_out));
}

}  // namespace

void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out, WgmmaTile tile) {
  if (args.m == 0 || args.n == 0 || args.groups == 0) return;
  const bool float_out = out == DType::kF32;
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    if (args.epilogue == Epilogue::kSwiglu) return launch_tile<T, 256, 2, true, 2>(stream, args, act, false);
    if (tile.columns == 256) return launch_tile<T, 256, 2, false, 2>(stream, args, act, float_out);
    launch_tile<T, 128, 2, false, 2>(stream, args, act, float_out);
  };
  if (act == DType::kBf16)
    launch(__nv_bfloat16{});
  else
    launch(__half{});
}

void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out) {
  launch_gemm_wgmma(stream, args, act, out, {256});
}

}  // namespace lfm2
