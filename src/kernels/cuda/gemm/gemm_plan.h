// Which kernel multiplies what: pure functions, tested without a GPU. A row's bits may depend on what is chosen here,
// so it is chosen by the model's dimensions and types, never by the number of rows.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/gate_up.h"

namespace lfm2 {

// What happens to a product's sums before they are rounded, once, and stored.
enum class Epilogue {
  kStore,
  kAdd,     // + the old out
  kSwiglu,  // silu(gate) ∘ up: rows of w alternate, kGateUpBlock gate rows, then as many up rows; out has n / 2 columns
};

struct GemmProblem {
  DType act, weight, out;
  int64_t n = 0, k = 0;
  bool bias = false;
  Epilogue epilogue = Epilogue::kStore;
  bool aligned = true;      // every base pointer on 16 bytes
  bool hopper = false;      // sm_90's own instructions are there
  bool plain_fp32 = false;  // fp32 by FFMA alone
};

enum class GemmPath {
  kCublasLt,     // dense, regular types and sizes
  kWgmma,        // bf16 and fp16, regular sizes: Hopper; dense and grouped; few rows by mma.sync, the same bits
  kMma,          // bf16 and fp16: mma.sync, sm_80 and later; dense and grouped
  kPlanesWgmma,  // fp32 activations, bf16 or fp32 weights: exact bf16 products, Hopper; dense and grouped
  kPlanes,       // fp32 activations, bf16 weights: three bf16 products, exact, mma.sync; dense and grouped
  kSimt,         // fp32 activations: FFMA; dense and grouped
};

// Whether any path takes these types.
bool gemm_supported(const GemmProblem& problem);

GemmPath choose_dense(const GemmProblem& problem);
GemmPath choose_grouped(const GemmProblem& problem);

// Which of kWgmma's two kernels, whose bits are the same, is faster on an H200 with weights that are not in its cache.
constexpr bool prefers_few_rows(int64_t m, int64_t n, bool grouped) { return grouped ? m <= 4 : m <= 16 && n <= 32768; }

// What one thread block computes.
struct GemmTile {
  int rows = 0, columns = 0;
};
constexpr GemmTile kMmaTile{128, 256}, kPlanesTile{128, 128}, kSimtTile{128, 128};

// The most row tiles that `rows` can need when split over `groups` groups in any way: the grid, without asking the GPU.
constexpr int64_t row_tile_bound(int64_t rows, int64_t groups, int tile_rows) {
  const int64_t filled = rows < groups ? rows : groups;
  return (rows + filled * (tile_rows - 1)) / tile_rows;
}

}  // namespace lfm2
