// bf16x3: matrix products of fp32 activations with bf16 weights on tensor cores, at fp32's accuracy and better; dense
// and grouped.
//
// An fp32 value is exactly the sum of three bf16 planes (8 + 8 + 8 significant bits), so three bf16 products with an
// exact bf16 weight are the exact products. Tensor cores truncate as they add. Therefore every 64 elements of k are
// summed separately, all products of the smallest plane first, and added to the running sum with rounding to nearest.
// Against fp64 the error is below plain fp32's (docs/rounding.md). The order of the sum depends on k alone, so the bits
// of a row do not depend on the rows beside it. Sums that planes may have got wrong are recomputed (gemm_bf16x3.cuh).
#include "kernels/cuda/common/shared_memory.cuh"
#include "kernels/cuda/gemm/gemm_bf16x3.cuh"
#include "kernels/cuda/gemm/gemm_tile.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace lfm2 {

namespace {

using namespace bf16x3;

constexpr int kThreads = 256;
constexpr int kRows = kBf16x3Tile.rows, kColumns = kBf16x3Tile.columns;
constexpr int kWarpRows = 64, kWarpColumns = 32;  // 2 x 4 warps; two sets of sums leave no registers for larger ones
constexpr int kDepth = 64;                        // elements of k in one tile buffer and between roundings
constexpr int kSteps = kDepth / 16;
constexpr int kRowChunks = kDepth / 8;
constexpr int kPlaneBytes = kRows * kDepth * 2, kABufferBytes = kPlanes * kPlaneBytes,
              kWBufferBytes = kColumns * kDepth * 2;
constexpr int kABuffers = 2, kWBuffers = 3;
constexpr int kSharedBytes = kABuffers * kABufferBytes + kWBuffers * kWBufferBytes;
constexpr int kLoadRows = kThreads / kRowChunks;
constexpr int kLoads = kRows / kLoadRows;  // octets of a that a thread brings to a tile buffer
constexpr int kSumStride = kColumns + 8;

static_assert(kRows == kColumns && kRows * kSumStride * 4 <= kSharedBytes);

// A thread's octets of a for one tile buffer. They are loaded from memory into registers while the previous tile buffer
// is multiplied, and then split into planes in the tile buffer.
struct APart {
  Octet octets[kLoads];

  __device__ void load(const float* a, int64_t first, int64_t end, int64_t k, int64_t first_k);
  __device__ void store(char* buffer) const;
};

__device__ void multiply_buffer(uint32_t a_rows, uint32_t w_rows, float (&sums)[kWarpRows / 16][kWarpColumns / 8][4]);

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a and out fp32, w
//   bf16, bias of any type.
// - block: a tile of kRows rows and kColumns columns of one group's product (find_tile); planes of a go through two
//   tile buffers, w through three, of kDepth of k each.
// - thread: a warp has 64 rows and 32 columns of the tile, in pieces as mma.sync leaves them (stage_sums); every
//   thread also splits octets of a into planes.
// - alignment: k in octets, a and w on 16 bytes; `vector_out`: vector_output(), otherwise any.
__global__ void __launch_bounds__(kThreads, 1) gemm_bf16x3_kernel(GemmArgs args, bool vector_out) {
  extern __shared__ __align__(128) char shared[];
  const TileCoord place = find_tile(args, kBf16x3Tile);
  if (place.group < 0) return;
  const float* a = static_cast<const float*>(args.a);
  const auto* w = static_cast<const __nv_bfloat16*>(args.w.data) + place.group * args.n * args.k;
  const int64_t blocks = (args.k + kDepth - 1) / kDepth;
  const auto a_buffer = [&](int64_t block) { return shared + block % kABuffers * kABufferBytes; };
  const auto w_buffer = [&](int64_t block) {
    return shared + kABuffers * kABufferBytes + block % kWBuffers * kWBufferBytes;
  };
  const auto start_w = [&](int64_t block) {
    if (block < blocks)
      load_rows<kThreads, kDepth, true, kColumns>(w_buffer(block), w, place.first_column, args.n, args.k,
                                                  block * kDepth);
    commit_copies();
  };
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / 4 * kWarpRows, warp_column = warp % 4 * kWarpColumns;
  const bool busy = place.first_row + warp_row < place.end_row;
  float sums[kWarpRows / 16][kWarpColumns / 8][4] = {};
  APart part;
  start_w(0);
  start_w(1);
  part.load(a, place.first_row, place.end_row, args.k, 0);
  part.store(a_buffer(0));
  for (int64_t block = 0; block < blocks; ++block) {
    wait_copies<1>();  // until this k-block's w has arrived
    __syncthreads();   // until it has for all threads, and a, too; every warp has read the last tile buffers
    start_w(block + 2);
    part.load(a, place.first_row, place.end_row, args.k, (block + 1) * kDepth);
    if (busy)
      multiply_buffer(shared_address(a_buffer(block)) + warp_row * kDepth * 2,
                      shared_address(w_buffer(block)) + warp_column * kDepth * 2, sums);
    if (block + 1 < blocks) part.store(a_buffer(block + 1));
  }
  if (busy) {
    constexpr int kColumnPieces = kWarpColumns / 8;
    const int lane = threadIdx.x % 32;
    const SumPlaces<kColumnPieces> places{static_cast<int>(place.first_row) + warp_row + lane / 4,
                                          static_cast<int>(place.end_row),
                                          static_cast<int>(place.first_column) + warp_column + lane % 4 * 2};
    redo_doubtful<__nv_bfloat16>(args, place.group, places,
                                 reinterpret_cast<float(&)[kWarpRows / 16 * kColumnPieces * 4]>(sums));
  }
  wait_copies<0>();
  __syncthreads();
  float* staged = reinterpret_cast<float*>(shared);
  stage_sums<kSumStride>(staged, warp_row, warp_column, sums);
  __syncthreads();
  write_staged<kThreads, float>(args, place, kBf16x3Tile, staged, kSumStride, vector_out);
}

__device__ void APart::load(const float* a, int64_t first, int64_t end, int64_t k, int64_t first_k) {
  const int64_t column = first_k + threadIdx.x % kRowChunks * kOctet;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t row = first + threadIdx.x / kRowChunks + i * kLoadRows;
    octets[i] = row < end && column < k ? load_octet(a + row * k + column, kOctet, true) : Octet{};
  }
}

__device__ void APart::store(char* buffer) const {
  const int chunk = threadIdx.x % kRowChunks, row0 = threadIdx.x / kRowChunks;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    uint32_t words[kPlanes][kOctet / 2];
#pragma unroll
    for (int pair = 0; pair < kOctet / 2; ++pair)
      split(octets[i].v[2 * pair], octets[i].v[2 * pair + 1], words[0][pair], words[1][pair], words[2][pair]);
#pragma unroll
    for (int p = 0; p < kPlanes; ++p)
      *reinterpret_cast<uint4*>(buffer + p * kPlaneBytes + chunk_offset(row0 + i * kLoadRows, chunk, kRowChunks)) = {
          words[p][0], words[p][1], words[p][2], words[p][3]};
  }
}

// sums += the products over one tile buffer, which are summed separately first.
__device__ void multiply_buffer(uint32_t a_rows, uint32_t w_rows, float (&sums)[kWarpRows / 16][kWarpColumns / 8][4]) {
  constexpr int kSixteenRows = 16 * kRowChunks * 16;  // in bytes
  const int lane = threadIdx.x % 32, swizzle = lane & 7;
  float block[kWarpRows / 16][kWarpColumns / 8][4] = {};
#pragma unroll
  for (int plane = kPlanes - 1; plane >= 0; --plane) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int a_chunk = (2 * step + (lane >> 4)) ^ swizzle, w_chunk = (2 * step + ((lane >> 3) & 1)) ^ swizzle;
      const uint32_t w_place =
          w_rows + static_cast<uint32_t>((((lane & 7) + (lane >> 4) * 8) * kRowChunks + w_chunk) * 16);
      const uint32_t a_place =
          a_rows + static_cast<uint32_t>(plane * kPlaneBytes + ((lane & 15) * kRowChunks + a_chunk) * 16);
      uint32_t w[kWarpColumns / 16][4];
#pragma unroll
      for (int j = 0; j < kWarpColumns / 16; ++j) load_matrices(w[j], w_place + j * kSixteenRows);
#pragma unroll
      for (int i = 0; i < kWarpRows / 16; ++i) {
        uint32_t a[4];
        load_matrices(a, a_place + i * kSixteenRows);
#pragma unroll
        for (int j = 0; j < kWarpColumns / 8; ++j)
          multiply_add<__nv_bfloat16>(block[i][j], a, w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpRows / 16; ++i)
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][j][e] += block[i][j][e];
}

}  // namespace

void launch_gemm_bf16x3(cudaStream_t stream, const GemmArgs& args) {
  if (args.m == 0 || args.n == 0) return;
  allow_shared_bytes<gemm_bf16x3_kernel, kSharedBytes>();
  gemm_bf16x3_kernel<<<tile_count(args, kBf16x3Tile), kThreads, kSharedBytes, stream>>>(args, vector_output(args));
  check_launch("gemm_bf16x3_kernel");
}

}  // namespace lfm2
