// The matrix products on the CPU, dense and grouped. CpuOps owns one and forwards its products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/growing_buffer.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace lfm2 {

class CpuMatmul {
 public:
  CpuMatmul(ThreadPool& pool, const Simd& simd) : pool_(pool), simd_(simd) {}

  // In whole tiles of w, each [tile_columns, k], prepack() puts the elements in the order of a product
  // (MatmulKernel::tile_w). So a product of one row reads memory from end to end, at full speed, and transposes
  // nothing. Other shapes stay as they are.
  Tensor prepacked(const Tensor& w) const;
  void prepack(const Tensor& w);  // rows, in place

  // kernels/ops.h defines what they compute.
  void matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write);
  void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out);
  void grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out);
  void grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out);

 private:
  // A matrix product, and the blocks of rows into which it is cut. Each block is multiplied by one matrix, and packed
  // in whole tiles.
  struct Product;
  struct RowBlock {
    int64_t matrix = 0, first_row = 0, rows = 0, first_tile = 0, end_tile = 0;
  };
  void cut_rows(int64_t matrix, int64_t first, int64_t last, int64_t wanted);
  int64_t min_item_columns() const;
  int64_t wanted_blocks(int64_t n) const;
  void cut_experts(const Tensor& a, const Tensor& w, const Tensor& expert_offsets);
  Tensor scaled_rows(const Tensor& a);
  const std::byte* pack_rows(const Tensor& a, DType w_type);
  int64_t few_tiles(const Product& product) const;
  int64_t tiles_at_once(const Product& product, int64_t rows) const;
  void multiply_blocks(Product product);
  void multiply_single_rows(const Product& product, int64_t group_columns, int64_t item_blocks);
  void multiply_group(const Product& product, const RowBlock& block, int64_t first_column, int64_t end_column,
                      std::byte* w_tile, float* sums, const std::byte* next_w) const;

  ThreadPool& pool_;
  const Simd& simd_;
  std::vector<RowBlock> row_blocks_;
  GrowingBuffer bias_, packed_, scratch_, scaled_;
};

}  // namespace lfm2
