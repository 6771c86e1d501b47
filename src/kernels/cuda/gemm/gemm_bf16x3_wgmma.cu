// Matrix products of fp32 activations on Hopper's tensor cores, at fp32's accuracy and better; dense and grouped.
//
// The method is that of gemm_bf16x3.cu. An fp32 value is exactly the sum of three bf16 planes. Tensor cores truncate as
// they add, so every 64 elements of k are summed separately, the smallest plane first, and added to the running sum
// with rounding to nearest. Weights of bf16 need three products, which are exact. Weights of fp32 are split as well and
// need six; the omitted products are below 2^-24 of a product. The order of the sum depends on k alone, so the bits of
// a row do not depend on the rows beside it. Sums that planes may have got wrong are recomputed (gemm_bf16x3.cuh).
//
// Two thread blocks of a cluster compute 128 rows by 256 columns, 128 columns each. Each loads half of the rows' fp32
// values for both, and its own weights: one warp does that, running ahead through a ring of tile buffers. Two
// warpgroups multiply, 64 rows each. They split the values in registers, from which the tensor cores read them, so
// planes of activations are never stored. One more warpgroup splits fp32 weights into planes, in shared memory.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/gemm/gemm_bf16x3.cuh"
#include "kernels/cuda/gemm/gemm_bf16x3_wgmma_tiles.cuh"

namespace lfm2 {

namespace {

using namespace bf16x3;

template <bool float_weights>
__device__ void load_tiles(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                           const Block& block);
__device__ void split_weights(const GemmArgs& args, const Block& block);
template <bool float_weights>
__device__ void multiply_tiles(const GemmArgs& args, const Block& block, int warpgroup);

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a and out fp32, w bf16
//   or, with float_weights, fp32, bias of any type; a_map and w_map describe a and w to the copy engine.
// - block: stays on its SM and processes, together with the other block of its cluster, one tile of kRows rows and
//   kColumns columns after another (for_each_tile).
// - thread: the first warp loads (load_tiles); with float_weights the second warpgroup splits w into planes
//   (split_weights); the last two warpgroups multiply, 64 rows each, and write (multiply_tiles).
// - alignment: n in octets (kSwiglu: n in sixteens), k in octets, with float_weights in fours; everything on 16 bytes.
template <bool float_weights>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(Shape<float_weights>::kThreads, 1)
    gemm_bf16x3_wgmma_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                             const __grid_constant__ GemmArgs args) {
  using S = Shape<float_weights>;
  extern __shared__ char raw_shared[];
  __shared__ Barriers barriers;
  const uint32_t start = shared_address(raw_shared);
  const Block block{raw_shared + ((start + 1023) / 1024 * 1024 - start), &barriers, cluster_rank(),
                    static_cast<int>((args.k + kDepth - 1) / kDepth)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kBuffers; ++i) {
      barrier_init(shared_address(&barriers.full[i]), 1);
      barrier_init(shared_address(&barriers.free[i]), S::kReaders);
    }
    for (int i = 0; i < S::kPlaneBuffers; ++i) {
      barrier_init(shared_address(&barriers.planes_full[i]), kWarpgroup / 32);
      barrier_init(shared_address(&barriers.planes_free[i]), 2 * kWarpgroup / 32);
    }
    barrier_init_fence();
  }
  cluster_sync();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<kLoaderRegisters>();
    if (threadIdx.x < 32) load_tiles<float_weights>(args, &a_map, &w_map, block);
  } else if (float_weights && warpgroup == 1) {
    if constexpr (float_weights) {
      setmaxnreg_dec<kSplitterRegisters>();
      split_weights(args, block);
    }
  } else {
    setmaxnreg_inc<S::kMultiplierRegisters>();
    multiply_tiles<float_weights>(args, block, warpgroup - S::kFirstMultiplier);
  }
  __syncwarp();
  cluster_sync();  // a block may not end while the other block still writes to its shared memory
}

// Like bf16x3::split, but with rounding: what the six products omit becomes a third as large, and has either sign.
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

// Run by one warp: loads a and w into one tile buffer after another.
template <bool float_weights>
__device__ void load_tiles(const GemmArgs& args, const CUtensorMap* a_map, const CUtensorMap* w_map,
                           const Block& block) {
  using S = Shape<float_weights>;
  Turn<S::kBuffers> turn;
  const int rank = static_cast<int>(block.rank);
  const bool elected = elect_lane();
  for_each_tile(args, [&](const ClusterTileCoord& place) {
    const int column = block.first_column(place);
    const bool has_columns = column < args.n;
    const int w_row = place.group * static_cast<int>(args.n) + column;
    for (int b = 0; b < block.blocks; ++b, turn.next()) {
      const uint32_t full = shared_address(&block.barriers->full[turn.buffer]);
      wait_for(shared_address(&block.barriers->free[turn.buffer]), turn.parity ^ 1);
      if (elected) {
        const uint32_t buffer = shared_address(buffer_of<float_weights>(block, turn.buffer));
        barrier_expect(full, (kABoxes + (has_columns ? S::kWBoxes : 0)) * kBoxBytes);
        load_box_multicast(buffer + rank * kBoxBytes, a_map, full, (1 << kCluster) - 1, b * kDepth + rank * kBoxFloats,
                           place.first_row);
        if (has_columns)
#pragma unroll
          for (int i = 0; i < S::kWBoxes; ++i)
            load_box(buffer + (kABoxes + i) * kBoxBytes, w_map, full, b * kDepth + i * (kDepth / S::kWBoxes), w_row);
      }
      __syncwarp();
    }
  });
}

// Run by one warpgroup: splits fp32 weights into planes, each thread one row.
__device__ void split_weights(const GemmArgs& args, const Block& block) {
  using S = Shape<true>;
  Turn<S::kBuffers> turn;
  Turn<S::kPlaneBuffers> planes_turn;
  const int row = threadIdx.x % kWarpgroup, swizzle = row & 7;
  for_each_tile(args, [&](const ClusterTileCoord&) {
    for (int b = 0; b < block.blocks; ++b, turn.next(), planes_turn.next()) {
      wait_for(shared_address(&block.barriers->full[turn.buffer]), turn.parity);
      wait_for(shared_address(&block.barriers->planes_free[planes_turn.buffer]), planes_turn.parity ^ 1);
      const char* from = buffer_of<true>(block, turn.buffer) + kABoxes * kBoxBytes + row * 128;
      char* to = planes_of<true>(block, planes_turn.buffer) + row * 128;
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
        barrier_arrive(shared_address(&block.barriers->free[turn.buffer]));
        barrier_arrive(shared_address(&block.barriers->planes_full[planes_turn.buffer]));
      }
    }
  });
}

// The first row of the tile that a lane holds. wgmma reads a thread's share of 64 rows and a tile buffer's depth from
// registers. For each step, lane l holds rows l / 4 and l / 4 + 8 of the operand, each with columns 2 (l % 4) + {0, 1}
// and those 8 further. Which rows of the tile stand in these places is free to choose: with the even rows first, each
// half of a warp reads 32 different banks.
__device__ int lane_row(int lane) { return lane / 4 % 4 * 2 + lane / 16; }

// A thread's share of one plane.
struct Fragments {
  uint32_t step[kSteps][4];

  // Call this after a wait for the products. Until then the compiler must not use these registers for anything else,
  // because it would insert a wait of its own.
  __device__ void keep() {
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) asm volatile("" : "+r"(step[i / 4][i % 4])::"memory");
  }
};

// Splits one step of a tile buffer. `place` is the offset of this thread's first value in the tile buffer's first box.
__device__ void split_step(const char* buffer, int place, int step, uint32_t (&first)[4], uint32_t (&second)[4],
                           uint32_t (&third)[4]) {
  const char* box = buffer + step / 2 * kBoxBytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair =
        *reinterpret_cast<const float2*>(box + (place ^ (step % 2 * 64 + i / 2 * 32)) + i % 2 * 8 * 128);
    split(pair.x, pair.y, first[i], second[i], third[i]);
  }
}

// Starts sums = the products of one tile buffer, the smallest first, in three groups. After the first group plane 2 of
// a is free, after the second group plane 1.
template <bool float_weights>
__device__ void start_products(float (&sums)[kSums], const Fragments (&a)[kPlanes], const WgmmaOperand& w) {
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
      wgmma_128<__nv_bfloat16>(sums, a[a_plane].step[step], w.at((w_plane * kBoxBytes >> 4) + step * kWgmmaStep),
                               i + step > 0);
    if (i == 0 || i == (float_weights ? 3 : 1)) wgmma_commit();
  }
  wgmma_commit();
}

// One of the two multiplying warpgroups, which computes half of a tile's rows, and its position in the rings of tile
// buffers.
template <bool float_weights>
struct Multiplier {
  using S = Shape<float_weights>;

  const GemmArgs& args;
  const Block& block;
  // local_row is the thread's first row in the tile, and a_place the `place` for split_step.
  const int warpgroup, lane, local_row, a_place;
  Turn<S::kBuffers> turn{};
  Turn<S::kPlaneBuffers> planes_turn{};

  __device__ __forceinline__ Multiplier(const GemmArgs& arguments, const Block& thread_block, int group)
      : args(arguments),
        block(thread_block),
        warpgroup(group),
        lane(threadIdx.x % 32),
        local_row(warpgroup * kGroupRows + threadIdx.x % kWarpgroup / 32 * 16 + lane_row(lane)),
        a_place(local_row * 128 + (((lane & 3) / 2) ^ (local_row & 7)) * 16 + lane % 2 * 8) {}

  __device__ __forceinline__ void wait_buffer() const {
    wait_for(shared_address(&block.barriers->full[turn.buffer]), turn.parity);
  }
  __device__ __forceinline__ void wait_planes() const {
    if constexpr (float_weights)
      wait_for(shared_address(&block.barriers->planes_full[planes_turn.buffer]), planes_turn.parity);
  }
  __device__ __forceinline__ void free_buffer(int buffer) const {
    __syncwarp();
    if (lane < kCluster) barrier_arrive_at(shared_address(&block.barriers->free[buffer]), lane);
  }
  __device__ __forceinline__ void free_planes() {
    if constexpr (float_weights) {
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&block.barriers->planes_free[planes_turn.buffer]));
      planes_turn.next();
    }
  }

  // For a tile of which this warpgroup has no rows or columns. Its tile buffers arrive nevertheless and must be freed.
  __device__ __forceinline__ void skip_tile() {
    for (int b = 0; b < block.blocks; ++b) {
      wait_buffer();
      free_buffer(turn.buffer);
      turn.next();
      wait_planes();
      free_planes();
    }
  }

  // Splits the steps [first, last) of the tile buffer that has arrived.
  template <int first, int last, int size>
  __device__ __forceinline__ void split_steps(uint32_t (&plane0)[kSteps][4], uint32_t (&plane1)[size][4],
                                              uint32_t (&plane2)[kSteps][4]) const {
#pragma unroll
    for (int step = first; step < last; ++step)
      split_step(buffer_of<float_weights>(block, turn.buffer), a_place, step, plane0[step], plane1[step], plane2[step]);
  }

  // Splits the next tile buffer while products of the last one are computed: each plane of `a` as soon as the products
  // that read it are done. The new plane 0 waits in `first`. With bf16 weights, plane 1 is free too late to take all of
  // its new values, and half of them wait in `second`.
  __device__ __forceinline__ void split_next(Fragments (&a)[kPlanes], Fragments& first,
                                             uint32_t (&second)[kSteps / 2][4]) {
    wait_buffer();
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
    if constexpr (float_weights) free_buffer(turn.buffer);
  }

  // sums += the products of one tile buffer, whose planes are in `a`. Afterwards `a` has the planes of the next tile
  // buffer, if there is one.
  __device__ __forceinline__ void multiply_buffer(Fragments (&a)[kPlanes], bool has_next, float (&part)[kSums],
                                                  float (&sums)[kSums]) {
    wait_planes();
    const uint32_t w =
        shared_address(float_weights ? planes_of<float_weights>(block, planes_turn.buffer)
                                     : buffer_of<float_weights>(block, turn.buffer) + kABoxes * kBoxBytes);
    start_products<float_weights>(part, a, WgmmaOperand(w));
    [[maybe_unused]] const int buffer = turn.buffer;
    turn.next();
    Fragments first = a[0];
    [[maybe_unused]] uint32_t second[kSteps / 2][4] = {};
    if (has_next) split_next(a, first, second);
    wgmma_wait<0>();
    a[0].keep();
    wgmma_keep(part);
    if constexpr (!float_weights) free_buffer(buffer);
    free_planes();
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += part[i];
    a[0] = first;
    if constexpr (!float_weights)
#pragma unroll
      for (int i = 0; i < kSteps / 2 * 4; ++i) a[1].step[i / 4][i % 4] = second[i / 4][i % 4];
  }

  // a = the planes of a tile's first tile buffer.
  __device__ __forceinline__ void split_first(Fragments (&a)[kPlanes]) const {
    wait_buffer();
    split_steps<0, kSteps>(a[0].step, a[1].step, a[2].step);
    if constexpr (float_weights) free_buffer(turn.buffer);
  }
};

template <bool float_weights>
__device__ void multiply_tiles(const GemmArgs& args, const Block& block, int warpgroup) {
  Multiplier<float_weights> multiplier(args, block, warpgroup);
  for_each_tile(args, [&](const ClusterTileCoord& place) {
    const int column0 = block.first_column(place);
    if (place.first_row + warpgroup * kGroupRows >= place.end_row || column0 >= args.n) return multiplier.skip_tile();
    float sums[kSums] = {};
    if (block.blocks > 0) {
      float part[kSums];
      Fragments a[kPlanes];
      multiplier.split_first(a);
      for (int b = 0; b < block.blocks; ++b) multiplier.multiply_buffer(a, b + 1 < block.blocks, part, sums);
    }
    finish<float_weights>(args, place, place.first_row + multiplier.local_row, column0 + multiplier.lane % 4 * 2, sums);
  });
}

template <bool float_weights>
void launch(cudaStream_t stream, const GemmArgs& args) {
  using S = Shape<float_weights>;
  CUtensorMap a_map{}, w_map{};
  if (args.k > 0) {
    a_map = matrix_map(args.a, DType::kF32, args.m, args.k, kRows, kBoxFloats);
    w_map = matrix_map(args.w.data, args.w.dtype, args.groups * args.n, args.k, kColumns, kDepth / S::kWBoxes);
  }
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t tiles = row_tile_bound(args.m, args.groups, kRows) * ceil_divide(args.n, kCluster * kColumns);
  const auto clusters =
      static_cast<unsigned>(std::min<int64_t>(tiles, (multiprocessors - args.reserved_sms) / kCluster));
  allow_shared_bytes<gemm_bf16x3_wgmma_kernel<float_weights>, S::kSharedBytes>();
  gemm_bf16x3_wgmma_kernel<float_weights>
      <<<clusters * kCluster, S::kThreads, S::kSharedBytes, stream>>>(a_map, w_map, args);
  check_launch("gemm_bf16x3_wgmma_kernel");
}

}  // namespace

void launch_gemm_bf16x3_wgmma(cudaStream_t stream, const GemmArgs& args) {
  if (args.m == 0 || args.n == 0) return;
  if (args.w.dtype == DType::kBf16)
    launch<false>(stream, args);
  else
    launch<true>(stream, args);
}

}  // namespace lfm2
