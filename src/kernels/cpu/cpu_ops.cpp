// The operators that compute each row or element separately.
#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lfm2 {

void CpuOps::embed(const Tensor& ids, const Tensor& table, const Tensor& out) {
  expect(ids.dtype == DType::kI32 && out.dim(0) == ids.numel() && out.dim(1) == table.dim(1), "embed: shapes");
  for_each_row(out.dim(0), out.dim(1), [&](int64_t token) {
    const int32_t id = ids.as<const int32_t>()[token];
    expect(id >= 0 && id < table.dim(0), "embed: a token id outside the vocabulary");
    if (table.tiled) return embed_tiled(table, id, out.rows(token, 1));
    convert(table.dtype, table.rows(id, 1).data, out.dtype, out.rows(token, 1).data, static_cast<size_t>(table.dim(1)));
  });
}

// The row of a table that lies in tiles.
void CpuOps::embed_tiled(const Tensor& table, int64_t row, const Tensor& out) const {
  const auto tile = static_cast<int64_t>(simd_.matmul->tile_columns);
  const auto k = static_cast<size_t>(table.dim(1));
  const RowsView whole{.data = table.rows(row / tile * tile, 1).data,
                       .type = table.dtype,
                       .stride = k,
                       .rows = static_cast<size_t>(tile),
                       .k = k,
                       .tiled = true};
  const auto in_tile = static_cast<size_t>(row % tile);
  if (out.dtype == table.dtype) return simd_.matmul->row_of_tile(whole, in_tile, out.data);
  std::vector<std::byte> values(k * size_bytes(table.dtype));
  simd_.matmul->row_of_tile(whole, in_tile, values.data());
  convert(table.dtype, values.data(), out.dtype, out.data, k);
}

void CpuOps::insert_drawn(const Tensor& ids, const Tensor& drawn) {
  expect(ids.dtype == DType::kI32 && drawn.dtype == DType::kI32, "insert_drawn: types");
  int32_t* values = ids.as<int32_t>();
  for (int64_t token = 0; token < ids.numel(); ++token) {
    const int64_t draw = -1 - int64_t{values[token]};
    expect(draw < drawn.numel(), "insert_drawn: a token that was not drawn");
    if (draw >= 0) values[token] = drawn.as<const int32_t>()[draw];
  }
}

void CpuOps::rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) {
  const int64_t n = weight.numel();
  if (out.dtype == DType::kF8) {
    const Tensor normed(rounded_.reserve<std::byte>(x.bytes()), x.dtype, {x.dim(0), n});
    rms_norm(x, weight, eps, normed);
    return quantize(normed, out);
  }
  expect(x.rank == 2 && x.dim(1) == n && out.dims == x.dims && out.dtype == x.dtype && is_float(x) && is_float(weight),
         "rms_norm: shapes");
  const float* in = as_float(x, activations_);
  const float* scale = as_float(weight, weights_);
  with_float_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(x.dim(0), n, [&](int64_t row) {
      const float* source = in + row * n;
      T* target = out.as<T>() + row * n;
      const float factor = norm_factor(simd_, source, n, eps);
      for (int64_t i = 0; i < n; ++i) target[i] = from_float<T>(source[i] * factor * scale[i]);
    });
  });
}

void CpuOps::add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual,
                      const Tensor& next_weight, float next_eps, const Tensor& normed) {
  const int64_t n = weight.numel();
  expect(x.rank == 2 && x.dim(1) == n && residual.dims == x.dims && residual.dtype == x.dtype && is_float(x) &&
             is_float(weight),
         "add_norm: shapes");
  const float* in = as_float(x, activations_);
  const float* scale = as_float(weight, weights_);
  with_float_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(x.dim(0), n, [&](int64_t row) {
      const float* source = in + row * n;
      T* target = residual.as<T>() + row * n;
      const float factor = norm_factor(simd_, source, n, eps);
      for (int64_t i = 0; i < n; ++i) target[i] = from_float<T>(to_float(target[i]) + source[i] * factor * scale[i]);
    });
  });
  if (next_weight) rms_norm(residual, next_weight, next_eps, normed);
}

void CpuOps::quantize(const Tensor& x, const Tensor& out) {
  const int64_t k = x.k(), groups = out.scales.groups(k), group = out.scales.group == 0 ? k : out.scales.group;
  expect(out.dtype == DType::kF8 && out.dims == x.dims && is_float(x) && out.scales.rows == 1, "quantize: shapes");
  const float* in = as_float(x, activations_);
  for_each_row(x.numel() / k * groups, group, [&](int64_t i) {
    const int64_t row = i / groups, first = i % groups * group, count = std::min(group, k - first);
    const float* values = in + row * k + first;
    F8* target = out.as<F8>() + row * k + first;
    float largest = 0;
    for (int64_t c = 0; c < count; ++c) largest = std::fmax(largest, std::fabs(values[c]));  // NaNs are ignored
    float scale = largest / kMaxF8;
    if (scale == 0) scale = 1;
    for (int64_t c = 0; c < count; ++c) target[c] = from_float<F8>(values[c] / scale);
    out.scales.data[i % groups * out.scales.stride + row] = scale;
  });
}

void CpuOps::put_columns(const Tensor& x, int64_t first, const Tensor& out) {
  const int64_t n = x.k(), width = out.k();
  expect(x.dtype == out.dtype && x.rank == 2 && out.rank == 2 && x.dim(0) == out.dim(0) && first >= 0 &&
             first + n <= width,
         "put_columns: shapes");
  const size_t element = size_bytes(x.dtype);
  for_each_row(x.dim(0), n, [&](int64_t row) {
    std::memcpy(out.data + static_cast<size_t>(row * width + first) * element,
                x.data + static_cast<size_t>(row * n) * element, static_cast<size_t>(n) * element);
  });
}

void CpuOps::norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                         const Tensor& normed, const Tensor& out) {
  rms_norm(x, norm_weight, eps, normed);
  matmul(normed, w, bias, out, Write::kStore);
}

void CpuOps::gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) {
  expect(rows.dtype == DType::kI32 && out.dim(0) == rows.numel() && out.dim(1) == x.dim(1) && out.dtype == x.dtype &&
             x.dtype != DType::kF8,
         "gather_rows: shapes");
  const size_t row_bytes = static_cast<size_t>(x.dim(1)) * size_bytes(x.dtype);
  for_each_row(out.dim(0), x.dim(1), [&](int64_t i) {
    const int32_t row = rows.as<const int32_t>()[i];
    // Tensor::rows() throws for a row outside of x.
    std::memcpy(out.rows(i, 1).data, x.rows(row, 1).data, row_bytes);
  });
}

void CpuOps::gate_heads(const Tensor& qkv, AttentionShape shape, const Tensor& out) {
  const int64_t d = shape.head_dim, columns = shape.qkv_columns();
  expect(shape.gated && qkv.rank == 2 && qkv.dim(1) == columns && out.rank == 2 && out.dim(0) == qkv.dim(0) &&
             out.dim(1) == shape.heads * d && out.dtype == qkv.dtype && is_float(qkv),
         "gate_heads: shapes");
  with_float_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(out.dim(0), out.dim(1), [&](int64_t token) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        float weight = -to_float(qkv.as<const T>()[(token + 1) * columns - shape.heads + head]);
        simd_.exponentials(&weight, &weight, 1);
        weight = 1.0f / (1.0f + weight);
        T* const elements = out.as<T>() + (token * shape.heads + head) * d;
        for (int64_t i = 0; i < d; ++i) elements[i] = from_float<T>(to_float(elements[i]) * weight);
      }
    });
  });
}

}  // namespace lfm2
