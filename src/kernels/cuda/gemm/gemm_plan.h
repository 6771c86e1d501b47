// Which kernel computes a matrix product. These are pure functions, tested without a GPU. A row's bits may depend on
// the choice, so the choice depends on the model's dimensions and types, never on the number of rows.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/gate_up.h"

namespace lfm2 {

// What happens to a product's sums before they are rounded, once, and stored.
enum class Epilogue {
  kStore,
  kAdd,     // adds the old out
  kSwiglu,  // silu(gate) ∘ up: w alternates kGateUpBlock gate rows and kGateUpBlock up rows; out has n / 2 columns
};

struct GemmProblem {
  DType act, weight, out;
  int64_t n = 0, k = 0;
  bool bias = false;
  Epilogue epilogue = Epilogue::kStore;
  bool aligned = true;                      // every base pointer is on 16 bytes
  bool hopper = false;                      // sm_90's own instructions can be used
  bool plain_fp32 = false;                  // fp32 products use FFMA only
  int64_t scale_rows = 1, scale_group = 0;  // of w's scales, if both operands are fp8 (kernels/tensor.h)
};

enum class GemmPath {
  kCublasLt,     // dense; regular types and sizes
  kWgmma,        // Hopper, bf16 and fp16, regular sizes; dense and grouped; few rows use mma.sync, with the same bits
  kFp8,          // Hopper, both operands fp8, regular sizes and scales; dense and grouped
  kMma,          // mma.sync of sm_80 and later, bf16 and fp16; dense and grouped
  kBf16x3Wgmma,  // Hopper, fp32 activations, bf16 or fp32 weights: exact bf16 products; dense and grouped
  kBf16x3,       // mma.sync, fp32 activations, bf16 weights: three exact bf16 products; dense and grouped
  kSimt,         // FFMA, fp32 activations, or both operands fp8; dense and grouped
};

// Whether any path supports these types.
bool gemm_supported(const GemmProblem& problem);

GemmPath choose_dense(const GemmProblem& problem);
GemmPath choose_grouped(const GemmProblem& problem);

// Whether the kernel for skinny products is faster than the other kernel of kWgmma, whose bits are the same. The limits
// are those of an H200 with weights that are not in its L2.
constexpr bool prefers_skinny(int64_t m, int64_t n, bool grouped) { return grouped ? m <= 32 : m <= 16 && n <= 32768; }

// The part of a product that one thread block computes.
struct GemmTile {
  int rows = 0, columns = 0;
};
constexpr GemmTile kMmaTile{128, 256}, kBf16x3Tile{128, 128}, kSimtTile{128, 128};

// The most row tiles that `rows` can need, for any split over `groups` groups. The grid has this size, because the host
// does not know the split.
constexpr int64_t row_tile_bound(int64_t rows, int64_t groups, int tile_rows) {
  const int64_t filled = rows < groups ? rows : groups;
  return (rows + filled * (tile_rows - 1)) / tile_rows;
}

}  // namespace lfm2
