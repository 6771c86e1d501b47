// Turns the tensor cores' sums into output where the transpose was computed: SwiGLU and rounding. For gemm_wgmma.cu.
#pragma once

#include "kernels/cuda/gemm/gemm_wgmma_out.cuh"

namespace lfm2 {

// Writes a warpgroup's 16-bit results: 64 columns of the product, of which warp i has 16 from column 16 i on (kSwiglu:
// these are eight of gate and eight of up, which give eight of out), for `width` rows. They go through the warpgroup's
// shared memory, 64 rows at a time, so that memory is written in pieces of 128 bytes (kSwiglu: 64). Of those 64 rows,
// row r has its chunk c of eight columns at the place c ^ (r % 8) (kSwiglu: c ^ (r / 2 % 4)), so that eight rows of a
// chunk lie in different banks. Two passes have a place each.
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
  static constexpr int kRowsAtOnce = kThreads / kChunks;  // that one instruction of all threads writes
  static constexpr int kStoreRows = swiglu ? 32 : 16;     // of the four matrices that a warp stores together

  struct Words {
    uint32_t of_matrix[4];
  };

  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int row0() { return static_cast<int>(threadIdx.x) % kThreads / kChunks; }
  __device__ static uint32_t address(int row, int chunk) {
    return swiglu ? row * 64 + (chunk ^ (row / 2 % 4)) * 16 : row * 128 + (chunk ^ (row % 8)) * 16;
  }
  // Where the lane's row of the four matrices from `row` on lies. kSwiglu: they are 32 rows of the warp's chunk;
  // otherwise 16 rows, of which the warp has two chunks.
  __device__ static uint32_t matrix_row(int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kThreads / 32;
    return swiglu ? address(row + lane, warp) : address(row + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  }
  // The words of these matrices; those behind the last row are zero.
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
