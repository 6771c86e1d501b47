// Matrix products of fp32 activations with weights of any type, and of fp8 with fp8, in true fp32, dense and grouped.
// Each output is one chain of fused multiply-adds over k in order, whatever the tile.
#include <cuda_fp8.h>

#include "kernels/cuda/gemm/gemm_tile.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;
constexpr int kRows = kSimtTile.rows, kColumns = kSimtTile.columns;
constexpr int kDepth = 16;          // elements of k in one tile buffer
constexpr int kStride = kRows + 4;  // floats between rows of tile buffers, which are stored transposed: [kDepth, rows]
constexpr int kPart = 4;            // a thread's 8 rows and 8 columns are two runs of 4, half a tile apart

static_assert(kRows == kColumns && kRows * kDepth == kThreads * kOctet, "a thread loads one octet of each matrix");

// Loads this thread's part of a matrix: an octet of one row for every tile buffer.
template <class W>
struct Walk {
  const W* next;
  int left;  // elements of the row from `next` on; 0 for a row outside
  bool vector;

  __device__ Walk(const W* matrix, int64_t first, int64_t end, int64_t k, bool vector_rows);
  __device__ Octet load();
};
// The same for fp8; loads the scaled values.
struct ScaledWalk : Walk<__nv_fp8_e4m3> {
  const float* scales;  // the row's first factor
  int64_t stride;       // from a factor to the row's next factor
  int column, group;    // elements of k with one factor; 0: the whole row

  __device__ Octet load();
};
__device__ void store_part(float* buffer, const Octet& octet);
template <bool half>
__device__ void multiply_buffer(const float* a_rows, const float* w_columns, float (&sums)[8][8]);
template <class Out>
__device__ void write_four(Out* out, const float (&values)[kPart], int64_t columns, bool vector);
template <class A, class W>
__device__ void multiply_tile(const TileCoord& place, int row0, int column0, A a_walk, W w_walk, int64_t k,
                              float (&sums)[8][8]);
template <class Out>
__device__ void write_sums(const GemmArgs& args, const TileCoord& place, int row0, int column0,
                           const float (&sums)[8][8], bool vector_out);
template <class Out>
__device__ void write_swiglu(const GemmArgs& args, const TileCoord& place, int row0, int column0, float (&sums)[8][8],
                             bool vector_out);

// - operands: a [m, k], w [groups, n, k], bias [n] or none, out [m, n] (kSwiglu: [m, n / 2]); a of type A, w of type W,
//   out of type Out, bias of any type; A and Out are fp32, or A and W are fp8 with scales.
// - block: a tile of kRows rows and kColumns columns of one group's product (find_tile), through two tile buffers of
//   kDepth of k each, which are stored transposed.
// - thread: eight rows and eight columns of the tile, each two runs of four, half a tile apart; only the first run of
//   rows if the group has at most half a tile of rows left.
// - alignment: `vector`: k in octets, a and w on 16 bytes; `vector_out`: vector_output(); otherwise any.
template <class A, class W, class Out>
__global__ void __launch_bounds__(kThreads, 2) gemm_simt_kernel(GemmArgs args, bool vector, bool vector_out) {
  const TileCoord place = find_tile(args, kSimtTile);
  if (place.group < 0) return;
  const Walk<A> a_walk(static_cast<const A*>(args.a), place.first_row, place.end_row, args.k, vector);
  const Walk<W> w_walk(static_cast<const W*>(args.w.data) + place.group * args.n * args.k, place.first_column, args.n,
                       args.k, vector);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row0 = (warp / 2 * 4 + lane / 8) * kPart, column0 = (warp % 2 * 8 + lane % 8) * kPart;
  float sums[8][8] = {};
  if constexpr (sizeof(A) == 1) {
    const GemmScales& scales = args.scales;
    const int64_t own = threadIdx.x / 2, groups = scales.group == 0 ? 1 : (args.k + scales.group - 1) / scales.group;
    const int64_t a_row = min(place.first_row + own, args.m - 1), w_row = min(place.first_column + own, args.n - 1);
    const int64_t w_stride = args.n / scales.w_rows;
    const int column = static_cast<int>(threadIdx.x % 2) * kOctet;
    const ScaledWalk scaled_a{{a_walk}, scales.a + a_row, scales.a_stride, column, scales.group};
    const ScaledWalk scaled_w{
        {w_walk}, scales.w + place.group * groups * w_stride + w_row / scales.w_rows, w_stride, column, scales.group};
    multiply_tile(place, row0, column0, scaled_a, scaled_w, args.k, sums);
  } else {
    multiply_tile(place, row0, column0, a_walk, w_walk, args.k, sums);
  }
  if (args.epilogue == Epilogue::kSwiglu)
    write_swiglu<Out>(args, place, row0, column0, sums, vector_out);
  else
    write_sums<Out>(args, place, row0, column0, sums, vector_out);
}

template <class A, class W>
__device__ void multiply_tile(const TileCoord& place, int row0, int column0, A a_walk, W w_walk, int64_t k,
                              float (&sums)[8][8]) {
  __shared__ __align__(16) float a_buffer[2][kDepth * kStride], w_buffer[2][kDepth * kStride];
  const bool half = place.end_row - place.first_row <= kRows / 2;  // often true for the last tile of a group
  Octet a_part = a_walk.load(), w_part = w_walk.load();
  const int blocks = static_cast<int>((k + kDepth - 1) / kDepth);
  for (int block = 0; block < blocks; ++block) {
    float* a_now = a_buffer[block % 2];
    float* w_now = w_buffer[block % 2];
    store_part(a_now, a_part);
    store_part(w_now, w_part);
    __syncthreads();  // with two tile buffers one barrier is enough: the other buffer was read before it
    a_part = a_walk.load();
    w_part = w_walk.load();
    if (half)
      multiply_buffer<true>(a_now + row0, w_now + column0, sums);
    else
      multiply_buffer<false>(a_now + row0, w_now + column0, sums);
  }
}

template <class Out>
__device__ void write_sums(const GemmArgs& args, const TileCoord& place, int row0, int column0,
                           const float (&sums)[8][8], bool vector_out) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t row = place.first_row + row0 + i % kPart + i / kPart * (kRows / 2);
    if (row >= place.end_row) continue;
    Out* out = static_cast<Out*>(args.out) + row * args.n;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t column = place.first_column + column0 + half * (kColumns / 2);
      float values[kPart];
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        values[j] = sums[i][half * kPart + j];
        if (column + j >= args.n) continue;
        if (args.bias.data != nullptr) values[j] += load_one(args.bias, column + j);
        if (args.epilogue == Epilogue::kAdd) values[j] += to_f32(out[column + j]);
      }
      write_four(out + column, values, args.n - column, vector_out);
    }
  }
}

template <class W>
__device__ Walk<W>::Walk(const W* matrix, int64_t first, int64_t end, int64_t k, bool vector_rows)
    : vector(vector_rows) {
  const int64_t row = first + threadIdx.x / 2;
  const int column = static_cast<int>(threadIdx.x % 2) * kOctet;
  next = matrix + row * k + column;
  left = row < end ? static_cast<int>(k) - column : 0;
}

template <class W>
__device__ Octet Walk<W>::load() {
  const Octet octet = left > 0 ? load_octet(next, left, vector) : Octet{};
  next += kDepth;
  left -= kDepth;
  return octet;
}

__device__ Octet ScaledWalk::load() {
  Octet octet{};
#pragma unroll
  for (int i = 0; i < kOctet; ++i)
    if (i < left) octet.v[i] = static_cast<float>(next[i]) * scales[group == 0 ? 0 : (column + i) / group * stride];
  next += kDepth;
  left -= kDepth;
  column += kDepth;
  return octet;
}

__device__ void store_part(float* buffer, const Octet& octet) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) buffer[(threadIdx.x % 2 * kOctet + i) * kStride + threadIdx.x / 2] = octet.v[i];
}

// x = two runs of four, half a tile apart; with `half`, only the first one.
template <bool half>
__device__ void load_eight(float (&x)[8], const float* buffer) {
  const float4 low = *reinterpret_cast<const float4*>(buffer);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  if constexpr (half) return;
  const float4 high = *reinterpret_cast<const float4*>(buffer + kRows / 2);
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// sums += x yᵀ over one tile buffer, for this thread's rows and columns; with `half`, only for the first four rows.
template <bool half>
__device__ void multiply_buffer(const float* a_rows, const float* w_columns, float (&sums)[8][8]) {
#pragma unroll
  for (int step = 0; step < kDepth; ++step) {
    float x[8], y[8];
    load_eight<half>(x, a_rows + step * kStride);
    load_eight<false>(y, w_columns + step * kStride);
#pragma unroll
    for (int i = 0; i < (half ? kPart : 8); ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
  }
}

template <class Out>
__device__ void write_four(Out* out, const float (&values)[kPart], int64_t columns, bool vector) {
  if constexpr (sizeof(Out) == sizeof(float)) {
    if (vector && columns > 0) {
      *reinterpret_cast<float4*>(out) = {values[0], values[1], values[2], values[3]};
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < kPart; ++j)
    if (j < columns) out[j] = rounded<Out>(values[j]);
}

// The columns of four adjacent lanes, four each. A gate lane gets the up columns from two lanes further.
//   lane % 4:   0     1     2    3
//   rows of w:  gate  gate  up   up
template <class Out>
__device__ void write_swiglu(const GemmArgs& args, const TileCoord& place, int row0, int column0, float (&sums)[8][8],
                             bool vector_out) {
  const bool gate = column0 / kGateUpBlock % 2 == 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t row = place.first_row + row0 + i % kPart + i / kPart * (kRows / 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float values[kPart];
#pragma unroll
      for (int j = 0; j < kPart; ++j)
        values[j] = swiglu(sums[i][half * 4 + j], __shfl_down_sync(0xffffffffu, sums[i][half * 4 + j], 2));
      const int64_t column = place.first_column + column0 + half * (kColumns / 2);
      if (!gate || row >= place.end_row || column >= args.n) continue;
      Out* out = static_cast<Out*>(args.out) + row * (args.n / 2) + column / (2 * kGateUpBlock) * kGateUpBlock +
                 column % kGateUpBlock;
      write_four(out, values, kPart, vector_out);
    }
  }
}

template <class A, class W, class Out>
void launch_types(cudaStream_t stream, const GemmArgs& args) {
  const bool vector = args.k % kOctet == 0 && on_16_bytes(args.a) && on_16_bytes(args.w.data);
  gemm_simt_kernel<A, W, Out><<<tile_count(args, kSimtTile), kThreads, 0, stream>>>(args, vector, vector_output(args));
  check_launch("gemm_simt_kernel");
}

}  // namespace

void launch_gemm_simt(cudaStream_t stream, const GemmArgs& args, DType out) {
  if (args.m == 0 || args.n == 0) return;
  if (args.w.dtype == DType::kF8)
    return with_device_type(
        out, [&](auto zero) { launch_types<__nv_fp8_e4m3, __nv_fp8_e4m3, decltype(zero)>(stream, args); });
  with_device_type(args.w.dtype, [&](auto zero) { launch_types<float, decltype(zero), float>(stream, args); });
}

}  // namespace lfm2
