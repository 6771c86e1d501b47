// The vector kernels of the CPU operators, one table per instruction set. CpuOps calls them through the table its
// backend chose.
//
// The order of every sum is fixed, so that a result depends on its own row and column only:
//   - matrix products: see MatmulKernel;
//   - dot products: lane l of 16 sums x[i] y[i] over i ≡ l (mod 16), in order, by fused multiply-add, within a block of
//     kBlockK elements; the lanes are folded 16 → 8 → 4 → 2 → 1 (lane i with lane i + half); the blocks' sums are added
//     in order.
// Tables with fused multiply-add (all but "portable" on old x86) give the same bits, but for "amx" in matrix products.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/dtype.h"

namespace lfm2 {

constexpr size_t kLanes = 16;
constexpr size_t kBlockK = 1024;

// Some rows of a matrix of fp32, bf16 or fp16, or a stretch of them.
struct RowsView {
  const void* data = nullptr;  // [rows, k], a row each stride elements
  DType type = DType::kF32;
  size_t stride = 0, rows = 0, k = 0;
};

// Memory that is needed soon: it is asked for little by little, so that it comes while the product is computed.
struct Fetch {
  const std::byte* from = nullptr;
  size_t stride = 0, rows = 0, row_bytes = 0;  // stride in bytes
  bool to_write = false;
};

// sums[r, c] (+)= Σ_i a[r, i] w[c, i] over one block of k: packed rows of a against one packed tile of w.
struct PackedProduct {
  const std::byte* a = nullptr;  // as many packed tiles as `rows` needs, back to back
  const std::byte* w = nullptr;
  DType a_type = DType::kF32, w_type = DType::kF32;
  size_t rows = 0, k = 0;
  RowsView a_rows, w_rows;           // what was packed, as it is stored
  float* sums = nullptr;             // [rows, tile_columns], rows in whole tiles; sums only after the last block
  bool first = false, last = false;  // of the blocks of k
  Fetch next_w, out;                 // what is packed next, and what the sums are written to
};

// The same for at most tile_rows rows of a over all of k, with rows of w as they are stored.
struct FewProduct {
  const std::byte* a = nullptr;  // a packed tile for each block of k, one each a_stride bytes
  size_t a_stride = 0;
  RowsView a_rows, w;            // at most tile_rows and tile_columns rows
  const void* next_w = nullptr;  // what is multiplied next, as far apart as the rows of w
  float* sums = nullptr;         // [tile_rows, tile_columns]
};

// A matrix product in register tiles over packed operands. k is cut into blocks of block_k; a block is summed from zero
// and added to the sums of those before it. How, is the kernel's own, and the same for every element:
//   - by vector registers: one fused multiply-add after the other, in order of k; block_k is kMatmulBlockK;
//   - by AMX tiles: see simd_amx.cpp, which also says when it makes a block's sum by multiply-adds.
constexpr size_t kMatmulBlockK = 256;
struct MatmulKernel {
  size_t tile_rows, tile_columns;  // of a register tile: what one packed tile of a or w holds
  size_t block_k;
  size_t (*a_bytes)(DType type);  // of one packed tile, over a whole block of k
  size_t (*w_bytes)(DType type);
  void (*pack_a)(const RowsView& a,
                 std::byte* packed);  // at most tile_rows rows and block_k columns; the rest is zeros
  void (*pack_w)(const RowsView& w, std::byte* packed);  // at most tile_columns rows and block_k columns
  void (*multiply)(const PackedProduct& product);
  void (*multiply_few)(const FewProduct& product) = nullptr;  // the same bits, faster for few rows; may be missing
};

// sums[r, c] = x[r] · y[c]: some rows of x against at most kDotColumns rows of y.
constexpr size_t kDotColumns = 8;
struct Dots {
  const float* x = nullptr;  // [rows, n], a row each x_stride elements
  size_t x_stride = 0, rows = 0;
  const float* y = nullptr;  // [columns, n], a row each y_stride elements
  size_t y_stride = 0, columns = 0;
  size_t n = 0;
  float* sums = nullptr;  // [rows, columns], a row each sums_stride elements
  size_t sums_stride = 0;
};

// out[d] = Σ_i weights[i] values[i, d], in order of i by fused multiply-add, within blocks of kBlockK.
struct Mixture {
  const float* weights = nullptr;  // [count]
  const float* values = nullptr;   // [count, n], a row each stride elements
  size_t count = 0, stride = 0, n = 0;
  float* out = nullptr;  // [n]
};

struct Simd {
  const char* name;
  const MatmulKernel* matmul;
  void (*dots)(const Dots&);
  void (*mix)(const Mixture&);
  // out = exp(x), n elements; x may be out. Within 1.1 units in the last place of the true value, everywhere.
  void (*exponentials)(const float* x, float* out, size_t n);
  // out = gate / (1 + exp(-gate)) * up, n elements; out may be either.
  void (*silu_multiply)(const float* gate, const float* up, float* out, size_t n);
  // out = x + y, n elements; out may be either.
  void (*add)(const float* x, const float* y, float* out, size_t n);

  float dot(const float* x, const float* y, size_t n) const {
    float sum = 0;
    dots({x, n, 1, y, n, 1, n, &sum, 1});
    return sum;
  }
};

extern const Simd kSimdAmx, kSimdAvx512, kSimdAvx2, kSimdPortable;  // all but the last on x86-64 only
extern const MatmulKernel kMatmulAmx;                               // what kSimdAmx adds to kSimdAvx512

// The tables this machine can run, fastest first.
std::vector<const Simd*> available_simd();

}  // namespace lfm2
