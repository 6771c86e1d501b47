// The check of matmul_swiglu and grouped_swiglu: silu(gate) ∘ up of sums that are near the CPU's.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "cuda/gemm/product.h"
#include "cuda/gemm/summation.h"

namespace lfm2::test {

inline constexpr std::pair<DType, DType> kActAndWeight[] = {
    {DType::kF32, DType::kF32}, {DType::kF32, DType::kBf16}, {DType::kBf16, DType::kBf16}, {DType::kF16, DType::kF16}};

// `sums` [rows, 2 ffn] are those of the gate and up rows, and `terms` those of the absolute values of their products.
inline void expect_close_swiglu(const HostTensor& out, const HostTensor& sums, const HostTensor& terms, int64_t k) {
  const int64_t ffn = out->dim(1);
  const double unit = 2 * summation_units(out->dtype, k) * 0x1p-24;
  std::vector<double> expected(out.size()), tolerance(out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / ffn, column = static_cast<int64_t>(i) % ffn;
    const auto gate =
        static_cast<size_t>(row * 2 * ffn + column / kGateUpBlock * 2 * kGateUpBlock + column % kGateUpBlock);
    const size_t up = gate + static_cast<size_t>(kGateUpBlock);
    const double weight = silu(sums.get(gate));
    expected[i] = weight * sums.get(up);
    // |silu'| stays below 1.1; the kernels' exponential and division lose less than 2^-20.
    tolerance[i] = unit * (1.1 * terms.get(gate) * std::fabs(sums.get(up)) + terms.get(up) * std::fabs(weight)) +
                   0x1p-20 * std::fabs(expected[i]) + store_error(out->dtype, expected[i]);
  }
  expect_close(out, expected, tolerance);
}

}  // namespace lfm2::test
