// matmul: tiles of both operands go through two tile buffers each in shared memory, with fp32 sums in registers. Each
// output is one chain of fused multiply-adds over k in order, whatever the tile, the strides and the batch.
#include "operators/cuda/launch.cuh"
#include "operators/matmul_plan.h"

namespace lfm2::operators::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kDepth = 16;  // elements of k in one tile buffer
constexpr int kPart = 4;    // a thread's rows and columns are kRuns runs of 4, 64 apart
constexpr int kGrid = 16;   // number of threads along rows, and along columns

// One operand as rows of k elements: element (row, l) lies at row * row_stride + l * k_stride.
struct Operand {
  int64_t rows, row_stride, k_stride;
  bool along_k;  // neighbouring threads go along k if that is the smaller stride, otherwise along the rows
  bool runs;     // four neighbours in that direction are one aligned piece of memory, also at every edge
};

template <class T>
struct Matmul {
  const T* a;
  const T* b;
  T* output;
  int64_t m, n, k;
  Operand left, right;
  int64_t output_m, output_n;
  bool output_runs;
  Loops<3> batch;
  Divider row_tiles, column_tiles;
};

template <class T>
struct alignas(sizeof(T) * kPart) Run {
  T v[kPart];
};

template <class T, int kRuns>
struct Carrier;
template <int kRuns>
__device__ void load_runs(float (&x)[kRuns * kPart], const float* buffer);

// - operands: a [batch, m, k], b [batch, k, n], output [batch, m, n], of any strides.
// - block: one tile of the product of one entry of the batch: 64 kRuns rows and columns, through two tile buffers of
//   kDepth of k each.
// - thread: 4 kRuns rows and columns of the tile, in runs of four, 64 apart.
// - alignment: any; runs of four are loaded and stored at once where they are aligned.
template <class T, int kRuns>
__global__ void __launch_bounds__(kThreads, kRuns == 1 ? 4 : 2) matmul_kernel(const __grid_constant__ Matmul<T> args) {
  using Carry = Carrier<T, kRuns>;
  constexpr int kOwn = kRuns * kPart;
  __shared__ __align__(16) float left_buffer[2][kDepth * Carry::kStride], right_buffer[2][kDepth * Carry::kStride];
  // Blocks count the tiles of one entry of the batch, then those of the next. Within an entry columns go first, so that
  // blocks that run together share rows of a.
  const int64_t tile = blockIdx.x, row_tile = args.column_tiles.quotient(tile);
  const int64_t column0 = (tile - row_tile * args.column_tiles.divisor) * Carry::kTile;
  const int64_t entry = args.row_tiles.quotient(row_tile);
  const int64_t row0 = (row_tile - entry * args.row_tiles.divisor) * Carry::kTile;
  int64_t positions[3];
  args.batch.find(entry, 1, positions);
  const T* a = args.a + positions[1];
  const T* b = args.b + positions[2];

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own_row = (warp / 2 * 4 + lane / 8) * kPart, own_column = (warp % 2 * 8 + lane % 8) * kPart;
  float sums[kOwn][kOwn] = {};
  Carry left(a, args.left, row0), right(b, args.right, column0);
  const auto inside = [&](int64_t l0) { return static_cast<int>(min(args.k - l0, static_cast<int64_t>(kDepth))); };
  left.load(args.left, inside(0));
  right.load(args.right, inside(0));
  int now = 0;
  for (int64_t l0 = 0; l0 < args.k; l0 += kDepth, now ^= 1) {
    left.store(left_buffer[now], args.left.along_k);
    right.store(right_buffer[now], args.right.along_k);
    __syncthreads();  // with two tile buffers one barrier is enough, because the other buffer was read before it
    if (l0 + kDepth < args.k) {
      left.load(args.left, inside(l0 + kDepth));
      right.load(args.right, inside(l0 + kDepth));
    }
#pragma unroll
    for (int l = 0; l < kDepth; ++l) {
      float x[kOwn], y[kOwn];
      load_runs<kRuns>(x, left_buffer[now] + l * Carry::kStride + own_row);
      load_runs<kRuns>(y, right_buffer[now] + l * Carry::kStride + own_column);
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
    }
  }

  T* output = args.output + positions[0];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t row = row0 + own_row + i % kPart + i / kPart * 64;
    if (row >= args.m) continue;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int64_t column = column0 + own_column + r * 64;
      T* target = output + row * args.output_m + column * args.output_n;
      if (args.output_runs && column + kPart <= args.n) {
        Run<T> run;
#pragma unroll
        for (int j = 0; j < kPart; ++j) run.v[j] = rounded<T>(sums[i][r * kPart + j]);
        *reinterpret_cast<Run<T>*>(target) = run;
      } else {
#pragma unroll
        for (int j = 0; j < kPart; ++j)
          if (column + j < args.n) target[j * args.output_n] = rounded<T>(sums[i][r * kPart + j]);
      }
    }
  }
}

// A thread's part in filling a tile buffer of one operand, [kDepth, 64 kRuns] in shared memory: it carries kRuns runs
// of four elements, along k or along the rows.
template <class T, int kRuns>
struct Carrier {
  static constexpr int kTile = 64 * kRuns;
  static constexpr int kStride = kTile + kPart;  // floats
  static constexpr int kRowsAtOnce = kThreads / (kDepth / kPart), kDepthAtOnce = kThreads / (kTile / kPart);

  const T* next;
  int row, l;     // place of run 0 in the tile buffer; each further run is kRowsAtOnce rows or kDepthAtOnce of k later
  int rows_left;  // number of rows from `row` on
  float values[kRuns][kPart];

  __device__ Carrier(const T* matrix, const Operand& operand, int64_t row0) {
    const int thread = static_cast<int>(threadIdx.x);
    l = operand.along_k ? thread % (kDepth / kPart) * kPart : thread / (kTile / kPart);
    row = operand.along_k ? thread / (kDepth / kPart) : thread % (kTile / kPart) * kPart;
    next = matrix + (row0 + row) * operand.row_stride + l * operand.k_stride;
    rows_left = static_cast<int>(min(operand.rows - row0, static_cast<int64_t>(kTile))) - row;
  }

  // Loads the runs for the next tile buffer. Only k_left steps of k are inside; elements beyond the rows or k are 0.
  __device__ void load(const Operand& operand, int k_left) {
    const int64_t step = operand.along_k ? operand.k_stride : operand.row_stride;
    const int64_t apart = operand.along_k ? kRowsAtOnce * operand.row_stride : kDepthAtOnce * operand.k_stride;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const T* from = next + r * apart;
      const int along = operand.along_k ? k_left - l : rows_left;
      const int across = operand.along_k ? rows_left - r * kRowsAtOnce : k_left - l - r * kDepthAtOnce;
      const int count = across > 0 ? along : 0;
      if (operand.runs && count >= kPart) {
        const Run<T> run = *reinterpret_cast<const Run<T>*>(from);
#pragma unroll
        for (int i = 0; i < kPart; ++i) values[r][i] = to_f32(run.v[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kPart; ++i) values[r][i] = i < count ? to_f32(from[i * step]) : 0.0f;
      }
    }
    next += kDepth * operand.k_stride;
  }
  __device__ void store(float* buffer, bool along_k) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      if (along_k) {
#pragma unroll
        for (int i = 0; i < kPart; ++i) buffer[(l + i) * kStride + row + r * kRowsAtOnce] = values[r][i];
      } else {
        *reinterpret_cast<float4*>(buffer + (l + r * kDepthAtOnce) * kStride + row) =
            make_float4(values[r][0], values[r][1], values[r][2], values[r][3]);
      }
    }
  }
};

template <int kRuns>
__device__ void load_runs(float (&x)[kRuns * kPart], const float* buffer) {
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const float4 run = *reinterpret_cast<const float4*>(buffer + r * 64);
    x[r * kPart] = run.x, x[r * kPart + 1] = run.y, x[r * kPart + 2] = run.z, x[r * kPart + 3] = run.w;
  }
}

static_assert(kGrid * kGrid == kThreads && kGrid * kPart == 64);

int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

// `base` is the operand's first element, and `batch_strides` are its strides over the batch.
template <class T>
Operand operand_of(const T* base, int64_t rows, int64_t row_stride, int64_t k, int64_t k_stride,
                   const int64_t* batch_strides, int batch_rank) {
  Operand operand{rows, row_stride, k_stride, false, false};
  operand.along_k = k > 1 && (rows == 1 || magnitude(k_stride) < magnitude(row_stride));
  const int64_t step = operand.along_k ? k_stride : row_stride, other = operand.along_k ? row_stride : k_stride;
  operand.runs = step == 1 && other % kPart == 0 && on_bytes(base, sizeof(T) * kPart);
  for (int loop = 0; loop < batch_rank; ++loop) operand.runs = operand.runs && batch_strides[loop] % kPart == 0;
  return operand;
}

template <class T, int kRuns>
Status launch_tiles(const MatmulPlan& plan, Matmul<T>& args, void* stream) {
  args.row_tiles = Divider(ceil_divide(plan.m, Carrier<T, kRuns>::kTile));
  args.column_tiles = Divider(ceil_divide(plan.n, Carrier<T, kRuns>::kTile));
  const int64_t blocks = args.row_tiles.divisor * args.column_tiles.divisor * plan.batch.numel();
  return launch(matmul_kernel<T, kRuns>, blocks, kThreads, stream, args);
}

}  // namespace

Status matmul(const MatmulPlan& plan, void* stream) {
  const OnDevice on_device(plan.device);
  STATUS_CHECK(on_device.status());
  return with_device_type(plan.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Walk<3>& batch = plan.batch;
    Matmul<T> args{static_cast<const T*>(plan.a) + batch.start[1],
                   static_cast<const T*>(plan.b) + batch.start[2],
                   static_cast<T*>(plan.output) + batch.start[0],
                   plan.m,
                   plan.n,
                   plan.k,
                   {},
                   {},
                   plan.output_m,
                   plan.output_n,
                   false,
                   Loops<3>(batch, 1),
                   {},
                   {}};
    args.left = operand_of(args.a, plan.m, plan.a_m, plan.k, plan.a_k, batch.strides[1], batch.rank);
    args.right = operand_of(args.b, plan.n, plan.b_n, plan.k, plan.b_k, batch.strides[2], batch.rank);
    args.output_runs = plan.output_n == 1 && plan.output_m % kPart == 0 && on_bytes(args.output, sizeof(T) * kPart);
    for (int loop = 0; loop < batch.rank; ++loop)
      args.output_runs = args.output_runs && batch.strides[0][loop] % kPart == 0;
    const int64_t large = ceil_divide(plan.m, 128) * ceil_divide(plan.n, 128) * batch.numel();
    if (plan.m > 64 && plan.n > 64 && large >= 132) return launch_tiles<T, 2>(plan, args, stream);
    return launch_tiles<T, 1>(plan, args, stream);
  });
}

}  // namespace lfm2::operators::gpu
