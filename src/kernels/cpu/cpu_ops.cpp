// The operators that treat each row or element alone, and the helpers of all.
#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lfm2 {

const float* CpuOps::as_float(const Tensor& x, Workspace& workspace) {
  if (x.dtype == DType::kF32) return x.as<const float>();
  constexpr int64_t kPiece = 16384;
  const int64_t count = x.numel();
  auto* copy = workspace.reserve<float>(static_cast<size_t>(count));
  for_each_row((count + kPiece - 1) / kPiece, kPiece, [&](int64_t piece) {
    const int64_t first = piece * kPiece;
    convert(x.dtype, x.data + static_cast<size_t>(first) * size_bytes(x.dtype), DType::kF32, copy + first,
            static_cast<size_t>(std::min(kPiece, count - first)));
  });
  return copy;
}

void CpuOps::embed(const Tensor& ids, const Tensor& table, const Tensor& out) {
  expect(ids.dtype == DType::kI32 && out.dim(0) == ids.numel() && out.dim(1) == table.dim(1), "embed: shapes");
  for_each_row(out.dim(0), out.dim(1), [&](int64_t token) {
    const int32_t id = ids.as<const int32_t>()[token];
    expect(id >= 0 && id < table.dim(0), "embed: a token id outside the vocabulary");
    convert(table.dtype, table.rows(id, 1).data, out.dtype, out.rows(token, 1).data, static_cast<size_t>(table.dim(1)));
  });
}

void CpuOps::rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) {
  const int64_t n = weight.numel();
  expect(x.rank == 2 && x.dim(1) == n && out.dims == x.dims && out.dtype == x.dtype, "rms_norm: shapes");
  const float* in = as_float(x, activations_);
  const float* scale = as_float(weight, weights_);
  with_float_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(x.dim(0), n, [&](int64_t row) {
      const float* source = in + row * n;
      T* target = out.as<T>() + row * n;
      const float mean_square = simd_.dot(source, source, static_cast<size_t>(n)) / static_cast<float>(n);
      const float factor = 1.0f / std::sqrt(mean_square + eps);
      for (int64_t i = 0; i < n; ++i) target[i] = from_float<T>(source[i] * factor * scale[i]);
    });
  });
}

void CpuOps::short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                        const Tensor& out) {
  const int64_t hidden = weight.dim(0), length = weight.numel() / std::max<int64_t>(hidden, 1);
  expect(bcz.dim(0) == batch.tokens && bcz.dim(1) == 3 * hidden && out.dim(0) == batch.tokens && out.dim(1) == hidden &&
             out.dtype == bcz.dtype && (!bias || bias.numel() == hidden),
         "short_conv: shapes");
  const float* taps = as_float(weight, weights_);       // [hidden, length]
  const float* offset = as_float(bias, more_weights_);  // [hidden] or null
  const auto* positions = batch.positions.as<const int32_t>();
  with_float_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(batch.tokens, hidden * (length + 1), [&](int64_t token) {
      const T* row = bcz.as<const T>() + token * 3 * hidden;  // B, C, z
      T* target = out.as<T>() + token * hidden;
      const int64_t first_tap = std::max<int64_t>(0, length - 1 - positions[token]);  // earlier ones see zeros
      for (int64_t c = 0; c < hidden; ++c) {
        float sum = offset != nullptr ? offset[c] : 0.0f;
        for (int64_t j = first_tap; j < length; ++j) {
          const T* past = row - (length - 1 - j) * 3 * hidden;
          sum += taps[c * length + j] * (to_float(past[c]) * to_float(past[2 * hidden + c]));
        }
        target[c] = from_float<T>(to_float(row[hidden + c]) * sum);
      }
    });
  });
}

void CpuOps::gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) {
  expect(rows.dtype == DType::kI32 && out.dim(0) == rows.numel() && out.dim(1) == x.dim(1) && out.dtype == x.dtype,
         "gather_rows: shapes");
  const size_t row_bytes = static_cast<size_t>(x.dim(1)) * size_bytes(x.dtype);
  for_each_row(out.dim(0), x.dim(1), [&](int64_t i) {
    const int32_t row = rows.as<const int32_t>()[i];
    std::memcpy(out.rows(i, 1).data, x.rows(row, 1).data, row_bytes);  // rows() refuses what is outside
  });
}

}  // namespace lfm2
