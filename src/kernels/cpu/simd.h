// The vector kernels of the CPU operators, one table per instruction set. CpuOps calls them through the table its
// backend chose.
//
// The order of every sum is fixed, so that a result depends on its own row and column only, and is the same with every
// table that has fused multiply-add (all but "portable" on old x86):
//   lane l of 16 sums x[i] y[i] over i ≡ l (mod 16), in order, by fused multiply-add, within a block of kBlockK
//   elements; the lanes are folded 16 → 8 → 4 → 2 → 1 (lane i with lane i + half); the blocks' sums are added in order.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/dtype.h"

namespace lfm2 {

constexpr size_t kLanes = 16;
constexpr size_t kBlockK = 1024;
constexpr size_t kPanelColumns = 8;
constexpr size_t kTileRows = 3;  // rows that a register tile holds: row counts that it divides run fastest

// sums[r, c] = Σ_i a[r, i] w[c, i]: some rows of a against at most kPanelColumns rows of w.
struct Panel {
  const float* a = nullptr;  // [rows, k], a row each a_stride elements
  size_t a_stride = 0, rows = 0;
  const void* w = nullptr;  // [columns, k] of w_type, a row each w_stride elements
  DType w_type = DType::kF32;
  size_t w_stride = 0, columns = 0;
  size_t k = 0;
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
  void (*multiply)(const Panel&);
  void (*mix)(const Mixture&);

  float dot(const float* x, const float* y, size_t n) const {
    float sum = 0;
    multiply({x, n, 1, y, DType::kF32, n, 1, n, &sum, 1});
    return sum;
  }
};

extern const Simd kSimdAvx512, kSimdAvx2, kSimdPortable;  // the first two on x86-64 only

// The tables this machine can run, fastest first.
std::vector<const Simd*> available_simd();

}  // namespace lfm2
