// Matrix products of bf16 and fp16 on tensor cores (mma.sync), dense and grouped. Each output is summed over k in steps
// of 16 in order, whatever the tile, so the bits of a row do not depend on the rows beside it.
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/gemm/gemm_tile.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;
constexpr int kRows = kMmaTile.rows, kColumns = kMmaTile.columns;
constexpr int kWarpRows = 64, kWarpColumns = 64;  // 2 x 4 warps
constexpr int kDepth = 64;                        // elements of k in one tile buffer
constexpr int kSteps = kDepth / 16;               // mma instructions along a tile buffer
constexpr int kRowChunks = kDepth / 8;            // 16-byte chunks in a row of a tile buffer
constexpr int kBuffers = 3;                       // 144 KB, of the 164 KB that an SM of sm_80 has
constexpr int kBufferBytes = (kRows + kColumns) * kDepth * 2;
constexpr int kSumStride = kColumns + 8;  // floats between rows of sums, which are staged in shared memory
constexpr int kSharedBytes = kBuffers * kBufferBytes;

static_assert(kRows * kSumStride * 4 <= kSharedBytes, "the sums take the place of the buffers");
static_assert(kThreads / 32 == kRows / kWarpRows * (kColumns / kWarpColumns), "one piece of the tile a warp");

// A warp's rows of a and of w, for one step of 16 elements of k.
struct Fragments {
  uint32_t a[kWarpRows / 16][4], w[kWarpColumns / 16][4];

  // `a_rows` and `w_rows` are the addresses of the warp's rows in a tile buffer.
  __device__ void load(uint32_t a_rows, uint32_t w_rows, int step);
};

template <class T>
__device__ void multiply_step(const Fragments& parts, float (&sums)[kWarpRows / 16][kWarpColumns / 8][4]);

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a and w of type T, out
//   of type T or fp32 (`float_out`), bias of any type.
// - block: a tile of kRows rows and kColumns columns of one group's product (find_tile), through a ring of kBuffers
//   tile buffers of kDepth of k each.
// - thread: a warp has 64 rows and 64 columns of the tile, in pieces as mma.sync leaves them (stage_sums).
// - alignment: `vector`: k in octets, a and w on 16 bytes; `vector_out`: vector_output(); otherwise any.
template <class T, bool vector>
__global__ void __launch_bounds__(kThreads, 1) gemm_mma_kernel(GemmArgs args, bool float_out, bool vector_out) {
  extern __shared__ __align__(128) char shared[];
  const TileCoord place = find_tile(args, kMmaTile);
  if (place.group < 0) return;
  const T* a = static_cast<const T*>(args.a);
  const T* w = static_cast<const T*>(args.w.data) + place.group * args.n * args.k;
  const int64_t blocks = (args.k + kDepth - 1) / kDepth;
  const auto buffer_of = [&](int64_t block) { return shared + block % kBuffers * kBufferBytes; };
  const auto load_a = [&](int64_t block) {
    if (block < blocks)
      load_rows<kThreads, kDepth, vector, kRows>(buffer_of(block), a, place.first_row, place.end_row, args.k,
                                                 block * kDepth);
  };
  const auto load_w = [&](int64_t block) {
    if (block < blocks)
      load_rows<kThreads, kDepth, vector, kColumns>(buffer_of(block) + kRows * kDepth * 2, w, place.first_column,
                                                    args.n, args.k, block * kDepth);
  };
  // The four warps of the same rows run on four schedulers. So if a tile's second half has no rows, the first half's
  // warps have all tensor cores.
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / 4 * kWarpRows, warp_column = warp % 4 * kWarpColumns;
  const auto load_parts = [&](Fragments& parts, int64_t block, int step) {
    const uint32_t buffer = shared_address(buffer_of(block));
    parts.load(buffer + warp_row * kDepth * 2, buffer + (kRows + warp_column) * kDepth * 2, step);
  };
  float sums[kWarpRows / 16][kWarpColumns / 8][4] = {};

  for (int64_t block = 0; block < kBuffers - 1; ++block) {
    load_a(block);
    load_w(block);
    commit_copies();
  }
  const auto wait_for_next_buffer = [] {
    commit_copies();
    wait_copies<kBuffers - 2>();  // until the next k-block's tile buffer has arrived
    named_barrier<kThreads>();    // until it has for all threads, and every warp has read this k-block's tile buffer
  };
  wait_copies<kBuffers - 2>();
  __syncthreads();
  if (place.first_row + warp_row < place.end_row) {
    Fragments parts[2];  // one is loaded while the other is used
    load_parts(parts[0], 0, 0);
    for (int64_t block = 0; block < blocks; ++block) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        // These go into the tile buffer of block - 1, which every warp left at the last barrier.
        if (step == 0) load_a(block + kBuffers - 1);
        if (step == 1) load_w(block + kBuffers - 1);
        if (step == kSteps - 1) wait_for_next_buffer();
        const bool last = step == kSteps - 1;  // after the last block, unused parts are loaded
        load_parts(parts[(step + 1) % 2], last ? block + 1 : block, last ? 0 : step + 1);
        multiply_step<T>(parts[step % 2], sums);
      }
    }
  } else {
    for (int64_t block = 0; block < blocks; ++block) {
      load_a(block + kBuffers - 1);
      load_w(block + kBuffers - 1);
      wait_for_next_buffer();
    }
  }
  wait_copies<0>();
  __syncthreads();

  // The sums go through shared memory, so that rows are written in whole octets.
  float* staged = reinterpret_cast<float*>(shared);
  stage_sums<kSumStride>(staged, warp_row, warp_column, sums);
  __syncthreads();
  if (float_out)
    write_staged<kThreads, float>(args, place, kMmaTile, staged, kSumStride, vector_out);
  else
    write_staged<kThreads, T>(args, place, kMmaTile, staged, kSumStride, vector_out);
}

__device__ void Fragments::load(uint32_t a_rows, uint32_t w_rows, int step) {
  constexpr int kSixteenRows = 16 * kRowChunks * 16;  // in bytes
  const int lane = threadIdx.x % 32, swizzle = lane & 7;
  const int a_chunk = (2 * step + (lane >> 4)) ^ swizzle, w_chunk = (2 * step + ((lane >> 3) & 1)) ^ swizzle;
  a_rows += static_cast<uint32_t>(((lane & 15) * kRowChunks + a_chunk) * 16);
  w_rows += static_cast<uint32_t>((((lane & 7) + (lane >> 4) * 8) * kRowChunks + w_chunk) * 16);
#pragma unroll
  for (int i = 0; i < kWarpRows / 16; ++i) load_matrices(a[i], a_rows + i * kSixteenRows);
#pragma unroll
  for (int j = 0; j < kWarpColumns / 16; ++j) load_matrices(w[j], w_rows + j * kSixteenRows);
}

template <class T>
__device__ void multiply_step(const Fragments& parts, float (&sums)[kWarpRows / 16][kWarpColumns / 8][4]) {
#pragma unroll
  for (int i = 0; i < kWarpRows / 16; ++i)
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j)
      multiply_add<T>(sums[i][j], parts.a[i], parts.w[j / 2][j % 2 * 2], parts.w[j / 2][j % 2 * 2 + 1]);
}

template <class T, bool vector>
void launch_type(cudaStream_t stream, const GemmArgs& args, bool float_out) {
  constexpr auto kernel = gemm_mma_kernel<T, vector>;
  allow_shared_bytes<kernel, kSharedBytes>();
  kernel<<<tile_count(args, kMmaTile), kThreads, kSharedBytes, stream>>>(args, float_out, vector_output(args));
  check_launch("gemm_mma_kernel");
}

}  // namespace

void launch_gemm_mma(cudaStream_t stream, const GemmArgs& args, DType act, DType out) {
  if (args.m == 0 || args.n == 0) return;
  const bool vector = args.k % 8 == 0 && on_16_bytes(args.a) && on_16_bytes(args.w.data);
  with_16_bit_type(act, [&](auto zero) {
    with_constant(vector, [&](auto whole) { launch_type<decltype(zero), whole()>(stream, args, out == DType::kF32); });
  });
}

}  // namespace lfm2
