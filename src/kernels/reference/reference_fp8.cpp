// The roundings to fp8, in double precision.
#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace lfm2::reference {
namespace {

// The multiple of E4M3's steps that is nearest to x, ties to even. Below 2^-6 all steps are 2^-9. There is no largest
// number.
double nearest_step(double x) {
  if (x == 0 || std::isnan(x)) return x;
  const double step = std::exp2(std::max(std::floor(std::log2(std::fabs(x))), -6.0) - 3);
  return std::copysign(std::nearbyint(std::fabs(x) / step) * step, x);
}
double nearest_f8(double x) { return std::isnan(x) ? x : std::clamp(nearest_step(x), -448.0, 448.0); }

}  // namespace

std::vector<double> quantized(const Tensor& x, int64_t group) {
  std::vector<double> out = elements(x);
  const auto k = static_cast<size_t>(x.dim(1)), length = group == 0 ? k : static_cast<size_t>(group);
  for (size_t row = 0; row < out.size(); row += k)
    for (size_t first = row; first < row + k; first += length) {
      const size_t end = std::min(first + length, row + k);
      double largest = 0;
      for (size_t i = first; i < end; ++i) largest = std::fmax(largest, std::fabs(out[i]));
      const double scale = largest == 0 ? 1 : largest / 448;
      for (size_t i = first; i < end; ++i) out[i] = std::isinf(scale) ? NAN : scale * nearest_f8(out[i] / scale);
    }
  return out;
}

std::vector<double> fp8_keys_values(const Tensor& qkv, AttentionShape shape) {
  std::vector<double> out = elements(qkv);
  const double largest_scale = std::exp2(qkv.dtype == DType::kF16 ? 7 : 119);
  for (int64_t head = 0; head < qkv.dim(0) * 2 * shape.kv_heads; ++head) {
    const int64_t token = head / (2 * shape.kv_heads), in_token = shape.heads + head % (2 * shape.kv_heads);
    double* const x = out.data() + token * shape.qkv_columns() + in_token * shape.head_dim;
    double largest = 0, scale = 0x1p-15;
    for (int64_t i = 0; i < shape.head_dim; ++i)
      if (std::isfinite(x[i])) largest = std::max(largest, std::fabs(x[i]));
    while (nearest_step(largest / scale) > 448 && scale < largest_scale) scale *= 2;
    for (int64_t i = 0; i < shape.head_dim; ++i) x[i] = std::isfinite(x[i]) ? scale * nearest_f8(x[i] / scale) : NAN;
  }
  return out;
}

}  // namespace lfm2::reference
