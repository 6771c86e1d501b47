// The values of E4M3 come from a table.
#include "kernels/cpu/scaled_elements.h"

#include <algorithm>
#include <array>

namespace lfm2 {

namespace {

const std::array<float, 256> kF8Values = [] {
  std::array<float, 256> all{};
  for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = to_float(F8{static_cast<uint8_t>(bits)});
  return all;
}();

}  // namespace

void scale_elements(const F8* elements, int64_t count, float scale, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = kF8Values[elements[i].bits] * scale;
}

void scale_elements(const Tensor& matrix, int64_t row, int64_t first, int64_t count, float* values) {
  const int64_t k = matrix.k(), group = matrix.scales.group == 0 ? k : matrix.scales.group;
  const F8* elements = matrix.as<const F8>() + row * k;
  for (int64_t c = first, end = c; c < first + count; c = end) {
    end = std::min((c / group + 1) * group, first + count);
    const float scale = matrix.scales.data[matrix.scale_of(row * k + c)];
    scale_elements(elements + c, end - c, scale, values + (c - first));
  }
}

}  // namespace lfm2
