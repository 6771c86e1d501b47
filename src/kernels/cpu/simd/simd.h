// The vector kernels of the CPU operators: one table of functions for each instruction set. CpuOps calls them through
// the table that its backend chose.
//
// The order of every sum is fixed, so that a result depends on its own row and column only:
//   - matrix products: see MatmulKernel;
//   - dot products: within a block of kBlockK elements, lane l of 16 sums x[i] y[i] over i ≡ l (mod 16), in order, by
//     fused multiply-add; the lanes are folded 16 → 8 → 4 → 2 → 1 (lane i with lane i + half); the sums of the blocks
//     are added in order.
// Tables with fused multiply-add (all but "portable" on old x86) give the same bits, except "amx" in matrix products,
// and "avx512bf16" in those of bf16 by bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace lfm2 {

constexpr size_t kLanes = 16;
constexpr size_t kBlockK = 1024;

// Some rows of a matrix of fp32, bf16 or fp16, or a range of columns of these rows.
struct RowsView {
  const void* data = nullptr;  // [rows, k]; rows are `stride` elements apart
  DType type = DType::kF32;
  size_t stride = 0, rows = 0, k = 0;
  bool tiled = false;  // one tile, in the order of MatmulKernel::tile_w
};

// Memory that will be needed soon. It is prefetched in small parts while a product is computed.
struct Fetch {
  const std::byte* from = nullptr;
  size_t stride = 0, rows = 0, row_bytes = 0;  // `stride` is in bytes
  bool to_write = false;
};

// sums[r, c] (+)= Σ_i a[r, i] w[c, i] over one block of k: packed rows of a by one packed tile of w.
struct PackedProduct {
  const std::byte* a = nullptr;  // packed tiles for `rows` rows, contiguous
  const std::byte* w = nullptr;
  DType a_type = DType::kF32, w_type = DType::kF32;
  size_t rows = 0, k = 0;
  RowsView a_rows, w_rows;  // the packed elements as they are stored in the matrices
  float* sums = nullptr;    // [rows, tile_columns], rows in whole tiles
  bool first = false;       // whether this is the first block of k
  Fetch next_w, out;        // what is packed next, and where the sums are written
};

// The same for at most tile_rows rows of a, over all of k or one block of it, with rows of w as they are stored. The
// rows of w are those of one tile of columns, or, if they lie in tiles, of `tiles` consecutive ones.
struct FewProduct {
  const std::byte* a = nullptr;  // a packed tile for each block of k; tiles are `a_stride` bytes apart
  size_t a_stride = 0;
  RowsView a_rows, w;            // at most tile_rows and tiles * tile_columns rows
  size_t tiles = 1;              // at most few_columns()
  const void* next_w = nullptr;  // the rows that are multiplied next, as far apart as those of w
  float* sums = nullptr;         // [tiles, tile_rows, tile_columns]; tiles are sums_stride elements apart
  size_t sums_stride = 0;
};

// A matrix product in register tiles over packed operands. k is cut into blocks of block_k elements. Each block is
// summed from zero and added to the sum of those before it. How a block is summed is up to the kernel, but the same for
// all elements:
//   - with vector registers: fused multiply-adds in the order of k; block_k is kMatmulBlockK;
//   - with AMX tiles: see simd_amx.cpp, which also explains when a block is summed by multiply-adds instead.
constexpr size_t kMatmulBlockK = 256;
struct MatmulKernel {
  size_t tile_rows, tile_columns;  // the sides of a register tile, and so of a packed tile of a or w
  size_t block_k;
  // The packing of an operand may depend on the type of the other one.
  size_t (*a_bytes)(DType a, DType w);  // bytes of one packed tile over a whole block of k
  size_t (*w_bytes)(DType a, DType w);
  // `a` has at most tile_rows rows and block_k columns; the rest of the packed tile is filled with zeros.
  void (*pack_a)(const RowsView& a, DType w, std::byte* packed);
  void (*pack_w)(const RowsView& w, DType a, std::byte* packed);  // at most tile_columns rows and block_k columns
  void (*multiply)(const PackedProduct& product);
  // Gives the same bits, faster if a has at most few_tiles tiles of rows, or few_tiles_tiled if w lies in tiles.
  void (*multiply_few)(const FewProduct& product);
  size_t few_tiles, few_tiles_tiled;
  // The number of consecutive tiles of columns that multiply_few should get at once if a has `rows` rows in all its
  // tiles. While some sums wait for their own last addition, others can proceed.
  size_t (*few_columns)(size_t rows);
  // Whether weights of this type are held in tiles, in an order that only the kernel knows.
  bool (*has_tiles)(DType w);
  void (*tile_w)(const RowsView& rows, std::byte* tile);                     // turns rows [tile_columns, k] into a tile
  void (*row_of_tile)(const RowsView& tile, size_t row, std::byte* target);  // turns one of them, [k], back
  // Whether pack_w would leave such a tile's blocks of k unchanged.
  bool (*tile_is_packed)(DType a, DType w);
};

// sums[r, c] = x[r] · y[c]: some rows of x by at most kDotColumns rows of y.
constexpr size_t kDotColumns = 8;
struct Dots {
  const float* x = nullptr;  // [rows, n]; rows are x_stride elements apart
  size_t x_stride = 0, rows = 0;
  const float* y = nullptr;  // [columns, n]; rows are y_stride elements apart
  size_t y_stride = 0, columns = 0;
  size_t n = 0;
  float* sums = nullptr;  // [rows, columns]; rows are sums_stride elements apart
  size_t sums_stride = 0;
};

// out[d] = Σ_i weights[i] values[i, d]: within blocks of kBlockK, in the order of i by fused multiply-add.
struct Mixture {
  const float* weights = nullptr;  // [count]
  const float* values = nullptr;   // [count, n]; rows are `stride` elements apart
  size_t count = 0, stride = 0, n = 0;
  float* out = nullptr;  // [n]
};

struct Simd {
  const char* name;
  const MatmulKernel* matmul;
  void (*dots)(const Dots&);
  void (*mix)(const Mixture&);
  // out[i] = exp(x[i]) for n elements; out may be x. The error is at most 1.1 units in the last place, everywhere.
  void (*exponentials)(const float* x, float* out, size_t n);
  // out[i] = gate[i] / (1 + exp(-gate[i])) * up[i] for n elements; out may be gate or up.
  void (*silu_multiply)(const float* gate, const float* up, float* out, size_t n);
  // out[i] = x[i] + y[i] for n elements; out may be x or y.
  void (*add)(const float* x, const float* y, float* out, size_t n);
  // The number of n elements of 2 or 4 bytes whose magnitude, the bits without the sign, is at least `begin` and below
  // `end`.
  size_t (*count_magnitudes)(const std::byte* x, size_t element_bytes, size_t n, uint32_t begin, uint32_t end);
  // out [rows, k] = x in fp32; x is not tiled.
  void (*widen)(const RowsView& x, float* out);

  float dot(const float* x, const float* y, size_t n) const {
    float sum = 0;
    dots({x, n, 1, y, n, 1, n, &sum, 1});
    return sum;
  }
};

extern const Simd kSimdAmx, kSimdAvx512Bf16, kSimdAvx512, kSimdAvx2;  // on x86-64 only
extern const Simd kSimdPortable;
// The matrix product of kSimdAmx, which otherwise has the functions of kSimdAvx512.
extern const MatmulKernel kMatmulAmx;

// The tables that this machine can run, fastest first.
std::vector<const Simd*> available_simd();

}  // namespace lfm2
