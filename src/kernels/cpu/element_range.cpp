#include "kernels/element_range.h"

#include <algorithm>

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {

ElementRange non_finite_range(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {0x7f800000u, 0x80000000u};
    case DType::kBf16:
      return {0x7f80u, 0x8000u};
    case DType::kF8:
      return {0x7fu, 0x80u};
    default:
      return {0x7c00u, 0x8000u};
  }
}

// From half a step above the largest number on.
ElementRange overflow_range(DType from, DType to) {
  if (from == DType::kF32 && to == DType::kF16) return {0x477ff000u, 0x7f800000u};
  if (from == DType::kF32 && to == DType::kBf16) return {0x7f7f8000u, 0x7f800000u};
  if (from == DType::kBf16 && to == DType::kF16) return {0x4780u, 0x7f80u};
  return {};
}

size_t count_in(ElementRange range, DType dtype, const std::byte* elements, size_t count) {
  static const Simd& simd = *available_simd().front();
  if (dtype == DType::kF8)
    return static_cast<size_t>(std::count_if(elements, elements + count, [&](std::byte x) {
      const auto magnitude = std::to_integer<uint32_t>(x & std::byte{0x7f});
      return range.begin <= magnitude && magnitude < range.end;
    }));
  return range.end == 0 ? 0 : simd.count_magnitudes(elements, size_bytes(dtype), count, range.begin, range.end);
}

size_t first_in(ElementRange range, DType dtype, const std::byte* elements) {
  size_t i = 0;
  while (count_in(range, dtype, elements + i * size_bytes(dtype), 1) == 0) ++i;
  return i;
}

}  // namespace lfm2
