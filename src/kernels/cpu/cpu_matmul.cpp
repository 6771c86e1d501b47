// matmul and grouped_matmul: blocks of rows times groups of columns, handed to the vector kernels panel by panel.
#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_ops.h"

namespace lfm2 {

namespace {

constexpr int64_t kColumns = static_cast<int64_t>(kPanelColumns);
constexpr int64_t kGroupColumns =
    8 * kColumns;                       // in one work item: long enough to be worth taking, short enough to share out
constexpr int64_t kMaxBlockRows = 126;  // a multiple of kTileRows

int64_t ceil_divide(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Rows of a that one work item goes through for each panel of w: even blocks, whole register tiles, and small enough
// that a's block stays in the L2 cache while the panels of w pass by.
int64_t block_rows(int64_t rows, int64_t k) {
  constexpr int64_t kTile = static_cast<int64_t>(kTileRows), kCacheElements = 256 * 1024;
  const int64_t most = std::clamp(kCacheElements / std::max<int64_t>(k, 1) / kTile * kTile, 4 * kTile, kMaxBlockRows);
  const int64_t blocks = std::max<int64_t>(1, ceil_divide(rows, most));
  return std::max(kTile, ceil_divide(ceil_divide(rows, blocks), kTile) * kTile);
}

// out[r, c] = sums[r, c] + bias[c] + (the old out[r, c]), one rounding.
template <class T>
void write_panel(const float* sums, int64_t rows, int64_t columns, const float* bias, bool add, T* out,
                 int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      float value = sums[r * kColumns + c];
      if (bias != nullptr) value += bias[c];
      if (add) value += to_float(out[r * stride + c]);
      out[r * stride + c] = from_float<T>(value);
    }
  }
}

}  // namespace

struct CpuOps::Gemm {
  const float* a = nullptr;  // [m, k]
  Tensor w;                  // [n, k]
  const float* bias = nullptr;
  Tensor out;  // [m, n]
  bool add = false;
};

void CpuOps::multiply_block(const Gemm& gemm, int64_t first_row, int64_t rows, int64_t first_column,
                            int64_t columns) const {
  alignas(64) std::array<float, static_cast<size_t>(kMaxBlockRows * kColumns)> sums;
  const int64_t k = gemm.w.dim(1), n = gemm.w.dim(0);
  for (int64_t c = first_column; c < first_column + columns; c += kColumns) {
    const int64_t width = std::min(kColumns, first_column + columns - c);
    Panel panel;
    panel.a = gemm.a + first_row * k;
    panel.a_stride = panel.w_stride = panel.k = static_cast<size_t>(k);
    panel.rows = static_cast<size_t>(rows);
    panel.w = gemm.w.rows(c, width).data;
    panel.w_type = gemm.w.dtype;
    panel.columns = static_cast<size_t>(width);
    panel.sums = sums.data();
    panel.sums_stride = kPanelColumns;
    simd_.multiply(panel);
    with_float_type(gemm.out.dtype, [&](auto zero) {
      using T = decltype(zero);
      const float* bias = gemm.bias == nullptr ? nullptr : gemm.bias + c;
      write_panel(sums.data(), rows, width, bias, gemm.add, gemm.out.as<T>() + first_row * n + c, n);
    });
  }
}

void CpuOps::matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) {
  const int64_t m = a.dim(0), n = w.dim(0);
  expect(a.rank == 2 && w.rank == 2 && out.rank == 2 && a.dim(1) == w.dim(1) && out.dim(0) == m && out.dim(1) == n &&
             (!bias || bias.numel() == n) && w.dtype != DType::kI32,
         "matmul: shapes");
  const Gemm gemm{as_float(a, activations_), w, as_float(bias, weights_), out, write == Write::kAdd};
  const int64_t block = block_rows(m, a.dim(1)), blocks = ceil_divide(m, block), groups = ceil_divide(n, kGroupColumns);
  pool_.parallel_for(static_cast<size_t>(blocks * groups), [&](size_t item, size_t) {
    const int64_t row = static_cast<int64_t>(item) / groups * block;
    const int64_t column = static_cast<int64_t>(item) % groups * kGroupColumns;
    multiply_block(gemm, row, std::min(block, m - row), column, std::min(kGroupColumns, n - column));
  });
}

void CpuOps::grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) {
  const int64_t experts = w.dim(0), n = w.dim(1);
  expect(a.rank == 2 && w.rank == 3 && out.rank == 2 && a.dim(1) == w.dim(2) && out.dim(0) == a.dim(0) &&
             out.dim(1) == n && expert_offsets.numel() == experts + 1 && w.dtype != DType::kI32,
         "grouped_matmul: shapes");
  const float* activations = as_float(a, activations_);
  const auto* offsets = expert_offsets.as<const int32_t>();
  const int64_t groups = ceil_divide(n, kGroupColumns);
  pool_.parallel_for(static_cast<size_t>(experts * groups), [&](size_t item, size_t) {
    const int64_t expert = static_cast<int64_t>(item) / groups;
    const int64_t column = static_cast<int64_t>(item) % groups * kGroupColumns;
    const int64_t first = offsets[expert], last = offsets[expert + 1];
    expect(first >= 0 && first <= last && last <= a.dim(0), "grouped_matmul: expert_offsets");
    const Gemm gemm{activations, w.at(expert), nullptr, out, false};
    const int64_t block = block_rows(last - first, a.dim(1));
    for (int64_t row = first; row < last; row += block)
      multiply_block(gemm, row, std::min(block, last - row), column, std::min(kGroupColumns, n - column));
  });
}

}  // namespace lfm2
