// Turns sums of a product on the CPU into rows of its output.
#include "kernels/cpu/cpu_product_output.h"

#include <algorithm>
#include <cstring>

namespace lfm2 {

namespace {

// out[c] = sums[c] + bias[c], + the old out[c] with `add`; rounded once.
template <class T>
void write_row(const float* sums, int64_t columns, const float* bias, bool add, T* out) {
  for (int64_t c = 0; c < columns; ++c) {
    float value = sums[c];
    if (bias != nullptr) value += bias[c];
    if (add) value += to_float(out[c]);
    out[c] = from_float<T>(value);
  }
}

// Computes silu(gate) * up. In the sums, blocks of gate and of up columns alternate, starting with a whole block of
// gate columns.
void write_swiglu(const Simd& simd, const float* sums, int64_t columns, DType type, std::byte* target) {
  float gate[kMaxGroupColumns / 2], up[kMaxGroupColumns / 2];
  int64_t count = 0;
  for (int64_t c = 0; c < columns; c += kGateUpColumns, count += kGateUpBlock) {
    std::memcpy(gate + count, sums + c, kGateUpBlock * sizeof(float));
    std::memcpy(up + count, sums + c + kGateUpBlock, kGateUpBlock * sizeof(float));
  }
  auto* result = type == DType::kF32 ? reinterpret_cast<float*>(target) : gate;
  simd.silu_multiply(gate, up, result, static_cast<size_t>(count));
  if (type != DType::kF32) convert(DType::kF32, gate, type, target, static_cast<size_t>(count));
}

}  // namespace

void CpuProductOutput::write(const Simd& simd, int64_t row, int64_t first, int64_t columns, const float* sums,
                             int64_t step) const {
  const auto tile_columns = static_cast<int64_t>(simd.matmul->tile_columns);
  const auto copy_sums = [&](float* target) {
    // The usual number of columns in a tile; a copy of constant size needs no call.
    constexpr int64_t kUsual = 32;
    for (int64_t c = 0; c < columns; c += tile_columns, sums += step)
      if (const int64_t count = std::min(tile_columns, columns - c); count == kUsual)
        std::memcpy(target + c, sums, kUsual * sizeof(float));
      else
        std::memcpy(target + c, sums, static_cast<size_t>(count) * sizeof(float));
  };
  const bool fp32 = out.dtype == DType::kF32;
  std::byte* target =
      out.data + static_cast<size_t>(row * out.dim(1) + (swiglu ? first / 2 : first)) * size_bytes(out.dtype);
  if (fp32 && !swiglu && !add && bias == nullptr) return copy_sums(reinterpret_cast<float*>(target));
  float values[kMaxGroupColumns];
  copy_sums(values);
  if (swiglu) return write_swiglu(simd, values, columns, out.dtype, target);
  if (fp32 && add && bias == nullptr) {
    auto* old = reinterpret_cast<float*>(target);
    return simd.add(old, values, old, static_cast<size_t>(columns));
  }
  with_float_type(out.dtype, [&](auto zero) {
    write_row(values, columns, bias == nullptr ? nullptr : bias + first, add,
              reinterpret_cast<decltype(zero)*>(target));
  });
}

}  // namespace lfm2
