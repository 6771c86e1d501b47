// Matrix products of fp32 activations on Hopper's tensor cores, at fp32's accuracy and better; dense and grouped.
//
// As gemm_planes.cu: an fp32 value is exactly the sum of three bf16 planes, tensor cores truncate as they add, so every
// 64 of k are summed on their own, smallest plane first, and added to the running sum with rounding to nearest. bf16
// weights need three products, which are exact; fp32 weights are split too and need six (what is left out is below
// 2^-24 of a product). The order of the sum depends on k alone, so the bits of a row do not depend on the rows beside
// it. Sums that planes may have got wrong are made again (gemm_planes.cuh).
//
// Two thread blocks of a cluster compute 128 rows x 256 columns, each 128 of the columns. Each loads half of the rows'
// fp32 values for both, and its own weights; one warp does that, running ahead through a ring of stages. Two warpgroups
// multiply, 64 rows each: they split the values in registers, from where the tensor cores take them, so planes of
// activations are never stored. Planes of fp32 weights are made by one more warpgroup, in shared memory.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/gemm/gemm_planes.cuh"
#include "kernels/cuda/gemm/gemm_planes_wgmma_tiles.cuh"
#include "kernels/cuda/gemm/tensor_map.h"

namespace lfm2 {

namespace {

using namespace planes;

// As planes::split, but rounded: what the six products leave out becomes a third of it, of either sign.
__device__ void split_rounded(float even, float odd, uint32_t& first, uint32_t& second, uint32_t& third) {
  const auto next = [&] {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(odd), "f"(even));
    even -= __uint_as_float(pair << 16);
    odd -= __uint_as_float(pair & 0xffff0000u);
    return pair;
  };
  first = next();
  second = next();
  third = next();
}

// One warp: brings a and w, stage after stage.
template <bool float_weights>
__device__ void load_tiles(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                           const Block& block) {
  using S = Shape<float_weights>;
  Turn<S::kStages> turn;
  const int rank = static_cast<int>(block.rank);
  for_each_tile(args, [&](const Place& place) {
    const int column = block.first_column(place);
    const bool has_columns = column < args.n;
    const int w_row = place.group * static_cast<int>(args.n) + column;
    for (int b = 0; b < block.blocks; ++b, turn.next()) {
      const uint32_t full = shared_address(&block.barriers->full[turn.stage]);
      wait_for(shared_address(&block.barriers->free[turn.stage]), turn.parity ^ 1);
      if (threadIdx.x % 32 == 0) {
        const uint32_t stage = shared_address(stage_of<float_weights>(block, turn.stage));
        barrier_expect(full, (kABoxes + (has_columns ? S::kWBoxes : 0)) * kBoxBytes);
        load_box_multicast(stage + rank * kBoxBytes, a_map, full, (1 << kCluster) - 1, b * kDepth + rank * kBoxFloats,
                           place.first_row);
        if (has_columns)
#pragma unroll
          for (int i = 0; i < S::kWBoxes; ++i)
            load_box(stage + (kABoxes + i) * kBoxBytes, w_map, full, b * kDepth + i * (kDepth / S::kWBoxes), w_row);
      }
      __syncwarp();
    }
  });
}

// One warpgroup: splits fp32 weights into planes, a row a thread.
__device__ void split_weights(const GemmArgs& args, const Block& block) {
  using S = Shape<true>;
  Turn<S::kStages> turn;
  Turn<S::kPlaneStages> planes_turn;
  const int row = threadIdx.x % kWarpgroup, swizzle = row & 7;
  for_each_tile(args, [&](const Place&) {
    for (int b = 0; b < block.blocks; ++b, turn.next(), planes_turn.next()) {
      wait_for(shared_address(&block.barriers->full[turn.stage]), turn.parity);
      wait_for(shared_address(&block.barriers->planes_free[planes_turn.stage]), planes_turn.parity ^ 1);
      const char* from = stage_of<true>(block, turn.stage) + kABoxes * kBoxBytes + row * 128;
      char* to = planes_of<true>(block, planes_turn.stage) + row * 128;
#pragma unroll
      for (int octet = 0; octet < kDepth / kOctet; ++octet) {
        const char* box = from + octet / 4 * kBoxBytes;
        const int chunk = octet % 4 * 2;
        const float4 low = *reinterpret_cast<const float4*>(box + (chunk ^ swizzle) * 16),
                     high = *reinterpret_cast<const float4*>(box + ((chunk + 1) ^ swizzle) * 16);
        uint4 plane[kPlanes];
        split_rounded(low.x, low.y, plane[0].x, plane[1].x, plane[2].x);
        split_rounded(low.z, low.w, plane[0].y, plane[1].y, plane[2].y);
        split_rounded(high.x, high.y, plane[0].z, plane[1].z, plane[2].z);
        split_rounded(high.z, high.w, plane[0].w, plane[1].w, plane[2].w);
#pragma unroll
        for (int p = 0; p < kPlanes; ++p)
          *reinterpret_cast<uint4*>(to + p * kBoxBytes + (octet ^ swizzle) * 16) = plane[p];
      }
      fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        barrier_arrive(shared_address(&block.barriers->free[turn.stage]));
        barrier_arrive(shared_address(&block.barriers->planes_full[planes_turn.stage]));
      }
    }
  });
}

// A thread's share of 64 rows and a stage's depth, in the layout in which wgmma takes it from registers: of each step
// lane l holds row l / 4 and that + 8, columns 2 (l % 4) + {0, 1} and those + 8. Which row of the tile that is, is ours
// to choose: with the even rows first, each half of a warp reads 32 different banks.
__device__ int lane_row(int lane) { return lane / 4 % 4 * 2 + lane / 16; }

struct Fragments {  // of one plane
  uint32_t step[kSteps][4];

  // Behind a wait: until then these registers are not used for anything else, which would wait by itself.
  __device__ void keep() {
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) asm volatile("" : "+r"(step[i / 4][i % 4])::"memory");
  }
};

// One step of a stage; `place`: of this thread's first value in the stage's first box.
__device__ void split_step(const char* stage, int place, int step, uint32_t (&first)[4], uint32_t (&second)[4],
                           uint32_t (&third)[4]) {
  const char* box = stage + step / 2 * kBoxBytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair =
        *reinterpret_cast<const float2*>(box + (place ^ (step % 2 * 64 + i / 2 * 32)) + i % 2 * 8 * 128);
    split(pair.x, pair.y, first[i], second[i], third[i]);
  }
}

// Starts sums = the products of one stage, the smallest first, as three groups: behind the first, plane 2 of a is free,
// behind the second plane 1.
template <bool float_weights>
__device__ void start_products(float (&sums)[kSums], const Fragments (&a)[kPlanes], uint64_t w) {
  constexpr int kCount = float_weights ? 6 : 3;
  constexpr int kA[] = {2, 1, 0, 1, 0, 0}, kW[] = {0, 1, 2, 0, 1, 0};
  constexpr int kExactA[] = {2, 1, 0};
  wgmma_keep(sums);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int a_plane = float_weights ? kA[i] : kExactA[i], w_plane = float_weights ? kW[i] : 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      wgmma_128<__nv_bfloat16>(sums, a[a_plane].step[step], w + (w_plane * kBoxBytes >> 4) + step * kWgmmaStep,
                               i + step > 0);
    if (i == 0 || i == (float_weights ? 3 : 1)) wgmma_commit();
  }
  wgmma_commit();
}

template <class B, int size>
__device__ void add_bias(const B* bias, int columns, float (&sums)[size]) {
#pragma unroll
  for (int j = 0; j < size / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = j * 8 < columns ? to_f32(bias[j * 8 + i]) : 0;
      sums[j * 4 + i] += x;
      sums[j * 4 + i + 2] += x;
    }
}

// A thread's sums: 16 pieces of 8 columns, of each two neighbouring columns in two rows, 8 apart; row0, column0: the
// first.
template <bool float_weights>
__device__ void finish(const GemmArgs& args, const Place& place, int row0, int column0, float (&sums)[kSums]) {
  using W = std::conditional_t<float_weights, float, __nv_bfloat16>;
  const int n = static_cast<int>(args.n), columns = n - column0;
  redo_doubtful<W>(args, place.group, SumPlaces<kColumns / 8>{row0, place.end_row, column0}, sums);
  switch (args.bias.data == nullptr ? DType::kI32 : args.bias.dtype) {
    case DType::kBf16:
      add_bias(static_cast<const __nv_bfloat16*>(args.bias.data) + column0, columns, sums);
      break;
    case DType::kF16:
      add_bias(static_cast<const __half*>(args.bias.data) + column0, columns, sums);
      break;
    case DType::kF32:
      add_bias(static_cast<const float*>(args.bias.data) + column0, columns, sums);
      break;
    case DType::kI32:
      break;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = row0 + half * 8;
    if (row >= place.end_row) continue;
    if (args.epilogue == Epilogue::kSwiglu) {
      float* out = static_cast<float*>(args.out) + row * (n / 2) + column0 / 16 * 8 + column0 % 8;
#pragma unroll
      for (int j = 0; j < kSums / 8; ++j) {
        const float* gate = sums + j * 8 + half * 2;
        const float* up = gate + 4;
        if (j * 16 < columns)
          *reinterpret_cast<float2*>(out + j * 8) = {swiglu(gate[0], up[0]), swiglu(gate[1], up[1])};
      }
      continue;
    }
    float* out = static_cast<float*>(args.out) + row * n + column0;
    constexpr int kTogether = 8;  // loads in flight
#pragma unroll
    for (int first = 0; first < kSums / 4; first += kTogether) {
      if (args.epilogue == Epilogue::kAdd) {
        float2 old[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j)
          old[j] = (first + j) * 8 < columns ? *reinterpret_cast<const float2*>(out + (first + j) * 8) : float2{};
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          sums[(first + j) * 4 + half * 2] += old[j].x;
          sums[(first + j) * 4 + half * 2 + 1] += old[j].y;
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if ((first + j) * 8 < columns)
          *reinterpret_cast<float2*>(out + (first + j) * 8) = {sums[(first + j) * 4 + half * 2],
                                                               sums[(first + j) * 4 + half * 2 + 1]};
    }
  }
}

// One of the two multiplying warpgroups, which has half of a tile's rows, and where it is in the rings of stages.
template <bool float_weights>
struct Multiplier {
  using S = Shape<float_weights>;

  const GemmArgs& args;
  const Block& block;
  const int warpgroup, lane, local_row, a_place;  // local_row: of the tile, the thread's first; a_place: split_step
  Turn<S::kStages> turn{};
  Turn<S::kPlaneStages> planes_turn{};

  __device__ __forceinline__ Multiplier(const GemmArgs& arguments, const Block& thread_block, int group)
      : args(arguments),
        block(thread_block),
        warpgroup(group),
        lane(threadIdx.x % 32),
        local_row(warpgroup * kGroupRows + threadIdx.x % kWarpgroup / 32 * 16 + lane_row(lane)),
        a_place(local_row * 128 + (((lane & 3) / 2) ^ (local_row & 7)) * 16 + lane % 2 * 8) {}

  __device__ __forceinline__ void wait_stage() const {
    wait_for(shared_address(&block.barriers->full[turn.stage]), turn.parity);
  }
  __device__ __forceinline__ void wait_planes() const {
    if constexpr (float_weights)
      wait_for(shared_address(&block.barriers->planes_full[planes_turn.stage]), planes_turn.parity);
  }
  __device__ __forceinline__ void free_stage(int stage) const {
    __syncwarp();
    if (lane < kCluster) barrier_arrive_at(shared_address(&block.barriers->free[stage]), lane);
  }
  __device__ __forceinline__ void free_planes() {
    if constexpr (float_weights) {
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&block.barriers->planes_free[planes_turn.stage]));
      planes_turn.next();
    }
  }

  // A tile of which this warpgroup has nothing: its stages come all the same.
  __device__ __forceinline__ void skip_tile() {
    for (int b = 0; b < block.blocks; ++b) {
      wait_stage();
      free_stage(turn.stage);
      turn.next();
      wait_planes();
      free_planes();
    }
  }

  // Steps [first, last) of the stage that has come, as planes.
  template <int first, int last, int size>
  __device__ __forceinline__ void split_steps(uint32_t (&plane0)[kSteps][4], uint32_t (&plane1)[size][4],
                                              uint32_t (&plane2)[kSteps][4]) const {
#pragma unroll
    for (int step = first; step < last; ++step)
      split_step(stage_of<float_weights>(block, turn.stage), a_place, step, plane0[step], plane1[step], plane2[step]);
  }

  // Splits the next stage while products are made of the last one: each plane of `a` as soon as the products that read
  // it are done. What becomes plane 0 waits in `first`; where plane 1 is free too late for all of it, half of it waits
  // in `second`.
  __device__ __forceinline__ void split_next(Fragments (&a)[kPlanes], Fragments& first,
                                             uint32_t (&second)[kSteps / 2][4]) {
    wait_stage();
    if constexpr (float_weights) {
      wgmma_wait<1>();
      a[1].keep();
      a[2].keep();
      split_steps<0, kSteps>(first.step, a[1].step, a[2].step);
    } else {
      wgmma_wait<2>();
      a[2].keep();
      split_steps<0, kSteps / 2>(first.step, second, a[2].step);
      wgmma_wait<1>();
      a[1].keep();
      split_steps<kSteps / 2, kSteps>(first.step, a[1].step, a[2].step);
    }
    if constexpr (float_weights) free_stage(turn.stage);
  }

  // sums += the products of one stage, whose planes are in `a`; behind it those of the next one are, if there is one.
  __device__ __forceinline__ void multiply_stage(Fragments (&a)[kPlanes], bool has_next, float (&part)[kSums], float (&sums)[kSums]) {
    wait_planes();
    const uint32_t w = shared_address(float_weights ? planes_of<float_weights>(block, planes_turn.stage)
                                                    : stage_of<float_weights>(block, turn.stage) + kABoxes * kBoxBytes);
    start_products<float_weights>(part, a, wgmma_operand(w));
    [[maybe_unused]] const int stage = turn.stage;
    turn.next();
    Fragments first = a[0];
    [[maybe_unused]] uint32_t second[kSteps / 2][4] = {};
    if (has_next) split_next(a, first, second);
    wgmma_wait<0>();
    a[0].keep();
    wgmma_keep(part);
    if constexpr (!float_weights) free_stage(stage);
    free_planes();
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += part[i];
    a[0] = first;
    if constexpr (!float_weights)
#pragma unroll
      for (int i = 0; i < kSteps / 2 * 4; ++i) a[1].step[i / 4][i % 4] = second[i / 4][i % 4];
  }

  // a = the planes of a tile's first stage.
  __device__ __forceinline__ void split_first(Fragments (&a)[kPlanes]) const {
    wait_stage();
    split_steps<0, kSteps>(a[0].step, a[1].step, a[2].step);
    if constexpr (float_weights) free_stage(turn.stage);
  }
};

template <bool float_weights>
__device__ void multiply_tiles(const GemmArgs& args, const Block& block, int warpgroup) {
  Multiplier<float_weights> multiplier(args, block, warpgroup);
  for_each_tile(args, [&](const Place& place) {
    const int column0 = block.first_column(place);
    if (place.first_row + warpgroup * kGroupRows >= place.end_row || column0 >= args.n) return multiplier.skip_tile();
    float sums[kSums] = {};
    if (block.blocks > 0) {
      float part[kSums];
      Fragments a[kPlanes];
      multiplier.split_first(a);
      for (int b = 0; b < block.blocks; ++b) multiplier.multiply_stage(a, b + 1 < block.blocks, part, sums);
    }
    finish<float_weights>(args, place, place.first_row + multiplier.local_row, column0 + multiplier.lane % 4 * 2, sums);
  });
}

template <bool float_weights>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(Shape<float_weights>::kThreads, 1)
    gemm_planes_wgmma_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                             const __grid_constant__ GemmArgs args) {
  using S = Shape<float_weights>;
  extern __shared__ char raw_shared[];
  __shared__ Barriers barriers;
  const uint32_t start = shared_address(raw_shared);
  const Block block{raw_shared + ((start + 1023) / 1024 * 1024 - start), &barriers, cluster_rank(),
                    static_cast<int>((args.k + kDepth - 1) / kDepth)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(shared_address(&barriers.full[i]), 1);
      barrier_init(shared_address(&barriers.free[i]), S::kReaders);
    }
    for (int i = 0; i < S::kPlaneStages; ++i) {
      barrier_init(shared_address(&barriers.planes_full[i]), kWarpgroup / 32);
      barrier_init(shared_address(&barriers.planes_free[i]), 2 * kWarpgroup / 32);
    }
    barrier_init_fence();
  }
  cluster_sync();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    give_registers<kLoaderRegisters>();
    if (threadIdx.x < 32) load_tiles<float_weights>(args, &a_map, &w_map, block);
  } else if (float_weights && warpgroup == 1) {
    if constexpr (float_weights) {
      give_registers<kSplitterRegisters>();
      split_weights(args, block);
    }
  } else {
    take_registers<S::kMultiplierRegisters>();
    multiply_tiles<float_weights>(args, block, warpgroup - S::kFirstMultiplier);
  }
  __syncwarp();
  cluster_sync();  // neither block may end while the other writes to it
}

template <bool float_weights>
void launch(cudaStream_t stream, const GemmArgs& args) {
  using S = Shape<float_weights>;
  CUtensorMap a_map{}, w_map{};
  if (args.k > 0) {
    a_map = matrix_map(args.a, DType::kF32, args.m, args.k, kRows, kBoxFloats);
    w_map = matrix_map(args.w.data, args.w.dtype, args.groups * args.n, args.k, kColumns, kDepth / S::kWBoxes);
  }
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const int64_t tiles = row_tile_bound(args.m, args.groups, kRows) * ceil_divide(args.n, kCluster * kColumns);
  const auto clusters = static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessors / kCluster));
  CUDA_CHECK(cudaFuncSetAttribute(gemm_planes_wgmma_kernel<float_weights>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  S::kSharedBytes));
  gemm_planes_wgmma_kernel<float_weights>
      <<<clusters * kCluster, S::kThreads, S::kSharedBytes, stream>>>(a_map, w_map, args);
  check_launch("gemm_planes_wgmma_kernel");
}

}  // namespace

void launch_gemm_planes_wgmma(cudaStream_t stream, const GemmArgs& args) {
  if (args.m == 0 || args.n == 0) return;
  if (args.w.dtype == DType::kBf16)
    launch<false>(stream, args);
  else
    launch<true>(stream, args);
}

}  // namespace lfm2
