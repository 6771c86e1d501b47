// The epilogue of a product on the CPU: it adds the bias and the old output to the sums, or computes SwiGLU, and rounds
// once.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"
#include "kernels/gate_up.h"
#include "kernels/tensor.h"

namespace lfm2 {

constexpr int64_t kMaxGroupColumns = 256;  // columns of a row that are written at once
constexpr int64_t kGateUpColumns = 2 * kGateUpBlock;

struct CpuProductOutput {
  Tensor out;                   // [rows, n]; after SwiGLU [rows, n / 2]
  const float* bias = nullptr;  // [n]
  bool add = false, swiglu = false;

  // Writes the columns [first, first + columns) of a row, at most kMaxGroupColumns; with SwiGLU, whole blocks of gate
  // and up columns. Their sums are in tiles that are `step` floats apart.
  void write(const Simd& simd, int64_t row, int64_t first, int64_t columns, const float* sums, int64_t step) const;
};

}  // namespace lfm2
