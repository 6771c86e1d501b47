// The epilogue of gemm_wgmma_kernel.cuh: turns the tensor cores' sums, in the registers of a warp, into output by bias,
// SwiGLU, addition and rounding. Sums of the transpose have their own writers.
#pragma once

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2 {

constexpr int kPassColumns = 64;  // columns of out in one pass through a warp's shared memory: 16 rows of 128 bytes
constexpr int kPassBytes = 16 * kPassColumns * 2;

// The fast exponential and division lose far less than the rounding to 16 bits. -inf gives NaN, as x / (1 + exp(-x))
// does.
__device__ inline float silu(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(1.0f + power_of_two(x * -1.4426950408889634f)));
  return x * inverse;
}

// A warp's 16 rows and their place in out.
struct Strip {
  int first_row, rows;  // if fewer than 16 rows are left, the others are not written
  int first_column;     // first column of the sums
};

template <class B, int width, int size>
__device__ void add_bias(const B* bias, int n, const Strip& strip, float (&sums)[size]) {
  const int lane_column = strip.first_column + threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
    if (lane_column + j * 8 >= n) break;  // n and the column are even
    const float even = to_f32(bias[lane_column + j * 8]), odd = to_f32(bias[lane_column + j * 8 + 1]);
    sums[j * 4] += even;
    sums[j * 4 + 1] += odd;
    sums[j * 4 + 2] += even;
    sums[j * 4 + 3] += odd;
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

// Writes fp32 results straight from the registers, 32 bytes of a row at a time.
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

// Writes a warp's 16 rows of 16-bit results. They pass through the warp's shared memory, 64 columns at a time, as 16
// rows of eight swizzled chunks, so that memory is read and written in rows of 128 bytes. Two consecutive passes use
// different places.
template <class T, int width, Epilogue epilogue>
class Writer {
 public:
  __device__ Writer(const GemmArgs& args, const Strip& strip, uint32_t staged)
      : staged_(staged),
        rows_(strip.rows - row0()),
        n_(static_cast<int>(kSwiglu ? args.n / 2 : args.n)),
        columns_(n_ - (kSwiglu ? strip.first_column / 2 : strip.first_column) - chunk() * 8),
        out_(static_cast<T*>(args.out) + static_cast<int64_t>(strip.first_row + row0()) * n_ + (n_ - columns_)) {}

  // Loads the old values for the first two passes, while the sums are computed.
  __device__ void load_old() const {
    if constexpr (epilogue == Epilogue::kAdd) {
#pragma unroll
      for (int pass = 0; pass < 2; ++pass) load_old(pass);
    }
  }

  template <int size>
  __device__ void write(const float (&sums)[size]) const {
    // The address of the lane's row in the four matrices that are stored together, and the swizzle of its chunk.
    const int lane = threadIdx.x % 32, matrix_chunk = lane / 16, swizzle = lane % 8;
    const uint32_t matrix_row = staged_ + lane % 16 * 128;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if constexpr (epilogue == Epilogue::kAdd) {
        wait_copies<1>();
        __syncwarp();
      }
#pragma unroll
      for (int piece = 0; piece < kPassColumns / 16; ++piece) {
        const int column = pass * kPassColumns + piece * 16;
        if (column >= kWidth) continue;
        const uint32_t address = matrix_row + place(pass) + ((piece * 2 + matrix_chunk) ^ swizzle) * 16;
        uint32_t words[4];  // upper and lower rows of the first eight columns, then those of the other eight
        if constexpr (epilogue == Epilogue::kAdd) load_matrices(words, address);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kSwiglu) {
            const int gate = column + i / 2 * 8 + i % 2 * 2, up = gate + 4;
            words[i] = pack<T>(silu(sums[gate]) * sums[up], silu(sums[gate + 1]) * sums[up + 1]);
          } else {
            float even = sums[column / 2 + i * 2], odd = sums[column / 2 + i * 2 + 1];
            if constexpr (epilogue == Epilogue::kAdd) {
              const float2 old = unpack<T>(words[i]);
              even += old.x;
              odd += old.y;
            }
            words[i] = pack<T>(even, odd);
          }
        }
        store_matrices(address, words);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 16 / kPassRows; ++i)
        if (valid(pass, i)) *target(pass, i) = load_shared(row_address(pass, i));
      if constexpr (epilogue == Epilogue::kAdd) {
        __syncwarp();
        load_old(pass + 2);
      }
    }
    __syncwarp();
  }

 private:
  static constexpr bool kSwiglu = epilogue == Epilogue::kSwiglu;
  static constexpr int kWidth = kSwiglu ? width / 2 : width, kPasses = (kWidth + kPassColumns - 1) / kPassColumns;
  static constexpr int kPassRows = 4;  // rows of out that one instruction writes

  __device__ static int row0() { return threadIdx.x % 32 / 8; }
  __device__ static int chunk() { return threadIdx.x % 8; }
  __device__ static uint32_t place(int pass) { return static_cast<uint32_t>(pass % 2 * kPassBytes); }
  __device__ bool valid(int pass, int i) const {
    return i * kPassRows < rows_ && pass * kPassColumns < columns_ && pass * kPassColumns + chunk() * 8 < kWidth;
  }
  __device__ uint32_t row_address(int pass, int i) const {
    const int row = row0() + i * kPassRows;
    return staged_ + place(pass) + row * 128 + (chunk() ^ (row & 7)) * 16;
  }
  __device__ uint4* target(int pass, int i) const {
    return reinterpret_cast<uint4*>(out_ + static_cast<int64_t>(i) * kPassRows * n_ + pass * kPassColumns);
  }
  __device__ void load_old(int pass) const {
    if (pass < kPasses) {
#pragma unroll
      for (int i = 0; i < 16 / kPassRows; ++i)
        if (valid(pass, i)) copy_async(row_address(pass, i), target(pass, i), true);
    }
    commit_copies();
  }

  uint32_t staged_;
  int rows_;     // rows from the lane's first one on
  int n_;        // columns of out
  int columns_;  // columns from the lane's first one on
  T* out_;
};

// Writes a warpgroup's 16-bit results from the registers, with bias and addition: 64 columns of the product for `width`
// rows. The rows must be few, because memory is written in pieces of 16 bytes.
template <class T, int width>
class DirectWriter {
 public:
  // `rows`: of the tile, from first_row on; `first_column`: of the warpgroup's part of the product. Reads the old
  // output if the product is added to it.
  __device__ DirectWriter(const GemmArgs& args, int first_row, int rows, int first_column) : args_(args), rows_(rows) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    column_ = first_column + thread / 32 * 16 + thread % 32 / 4;
    out_ = static_cast<T*>(args.out) + static_cast<int64_t>(first_row) * args.n + column_;
#pragma unroll
    for (int i = 0; i < width / 2; ++i) old_[i] = args.epilogue == Epilogue::kAdd && valid(i) ? to_f32(*place(i)) : 0;
  }

  // The sums are those of wgmma(), whose rows are columns of the product and whose columns are its rows.
  __device__ void write(const float (&sums)[width / 2]) const {
#pragma unroll
    for (int i = 0; i < width / 2; ++i) {
      if (!valid(i)) continue;
      const float value = args_.bias.data != nullptr ? sums[i] + load_one(args_.bias, column_ + column_of(i)) : sums[i];
      *place(i) = rounded<T>(args_.epilogue == Epilogue::kAdd ? value + old_[i] : value);
    }
  }

 private:
  __device__ static int row_of(int i) { return i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }
  __device__ static int column_of(int i) { return i / 2 % 2 * 8; }
  __device__ bool valid(int i) const { return row_of(i) < rows_ && column_ + column_of(i) < args_.n; }
  __device__ T* place(int i) const { return out_ + row_of(i) * args_.n + column_of(i); }

  const GemmArgs& args_;
  int rows_, column_;
  T* out_;
  float old_[width / 2];
};

// Writes a warpgroup's 16-bit results for `width` rows: 64 columns of the product, 16 from column 16 i on for warp i
// (kSwiglu: eight of gate and eight of up, which become eight of out). They pass through the warpgroup's shared memory,
// 64 rows at a time, so that memory is written in pieces of 128 bytes (kSwiglu: 64). In shared memory, chunk c of eight
// columns of row r lies at place c ^ (r % 8) (kSwiglu: c ^ (r / 2 % 4)), so that eight rows of a chunk lie in different
// banks. Two consecutive passes use different places.
template <class T, int width, bool swiglu>
class TransposedWriter {
 public:
  // `rows`: of the tile, from first_row on; `first_column`: of the warpgroup's part of the product.
  __device__ TransposedWriter(const GemmArgs& args, int first_row, int rows, int first_column, uint32_t staged)
      : staged_(staged),
        rows_(rows),
        n_(static_cast<int>(swiglu ? args.n / 2 : args.n)),
        column_((swiglu ? first_column / 2 : first_column) + chunk() * 8),
        out_(static_cast<T*>(args.out) + static_cast<int64_t>(first_row + row0()) * n_ + column_) {}

  // The sums are those of wgmma(), whose rows are columns of the product and whose columns are its rows.
  template <int size>
  __device__ void write(const float (&sums)[size]) const {
    const int warpgroup = static_cast<int>(threadIdx.x) / kThreads;
    warpgroup_barrier(warpgroup);  // other warps may still read what a Writer left in their parts of this memory
#pragma unroll
    for (int first = 0; first < width; first += kPassRows) {
      const uint32_t place = staged_ + first / kPassRows % 2 * kPassBytes;
#pragma unroll
      for (int row = first; row < first + kPassRows && row < width; row += kStoreRows)
        store_matrices_transposed(place + matrix_row(row - first), swiglu ? gated(sums, row) : plain(sums, row));
      warpgroup_barrier(warpgroup);
#pragma unroll
      for (int row = 0; row < kPassRows && first + row < width; row += kRowsAtOnce)
        if (first + row + row0() < rows_ && column_ < n_)
          *reinterpret_cast<uint4*>(out_ + static_cast<int64_t>(first + row) * n_) =
              load_shared(place + address(row + row0(), chunk()));
    }
    warpgroup_barrier(warpgroup);
  }

 private:
  static constexpr int kThreads = 128, kPassRows = 64, kPassBytes = kPassRows * 128;
  static constexpr int kChunks = swiglu ? 4 : 8;          // of a row
  static constexpr int kRowsAtOnce = kThreads / kChunks;  // rows that one instruction of all threads writes
  static constexpr int kStoreRows = swiglu ? 32 : 16;     // rows of the four matrices that a warp stores together

  struct Words {
    uint32_t of_matrix[4];
  };

  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int row0() { return static_cast<int>(threadIdx.x) % kThreads / kChunks; }
  __device__ static uint32_t address(int row, int chunk) {
    return swiglu ? row * 64 + (chunk ^ (row / 2 % 4)) * 16 : row * 128 + (chunk ^ (row % 8)) * 16;
  }
  // The address of the lane's row in the four matrices from `row` on. kSwiglu: they are 32 rows of the warp's chunk;
  // otherwise 16 rows of the warp's two chunks.
  __device__ static uint32_t matrix_row(int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kThreads / 32;
    return swiglu ? address(row + lane, warp) : address(row + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  }
  // The words of these matrices; those after the last row are zero.
  template <int size>
  __device__ static Words gated(const float (&sums)[size], int row) {
    Words words{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int gate = (row + i * 8) / 2, up = gate + 2;
      if (row + i * 8 < width)
        words.of_matrix[i] = pack<T>(silu(sums[gate]) * sums[up], silu(sums[gate + 1]) * sums[up + 1]);
    }
    return words;
  }
  template <int size>
  __device__ static Words plain(const float (&sums)[size], int row) {
    Words words{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (row + i / 2 * 8) / 2 + i % 2 * 2;
      if (row + i / 2 * 8 < width) words.of_matrix[i] = pack<T>(sums[at], sums[at + 1]);
    }
    return words;
  }
  __device__ static void store_matrices_transposed(uint32_t address, const Words& words) {
    lfm2::store_matrices_transposed(address, words.of_matrix);
  }

  uint32_t staged_;
  int rows_, n_, column_;
  T* out_;
};

}  // namespace lfm2
