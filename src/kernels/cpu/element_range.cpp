#include "kernels/element_range.h"

#include <bit>
#include <cstring>

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {

namespace {

// The number of bytes whose magnitude, without the sign, is at least `begin`, which is not 0. Eight at a time: the sum
// of a magnitude and 0x80 - begin has its highest bit set if the byte counts, and carries nothing to the next byte.
size_t count_bytes_from(uint32_t begin, const std::byte* bytes, size_t count) {
  constexpr uint64_t kEach = 0x0101010101010101u;
  const auto count_word = [&](uint64_t word) -> size_t {
    const uint64_t found = ((word & 0x7f * kEach) + (0x80 - begin) * kEach) & 0x80 * kEach;
    return found == 0 ? 0 : static_cast<size_t>(std::popcount(found));
  };
  size_t sum = 0, i = 0;
  for (; i + sizeof(uint64_t) <= count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, sizeof word);
    sum += count_word(word);
  }
  uint64_t rest = 0;
  if (i < count) std::memcpy(&rest, bytes + i, count - i);
  return sum + count_word(rest);
}

}  // namespace

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

// From half a step above the largest number of type `to` on.
ElementRange overflow_range(DType from, DType to) {
  if (from == DType::kF32 && to == DType::kF16) return {0x477ff000u, 0x7f800000u};
  if (from == DType::kF32 && to == DType::kBf16) return {0x7f7f8000u, 0x7f800000u};
  if (from == DType::kBf16 && to == DType::kF16) return {0x4780u, 0x7f80u};
  return {};
}

size_t count_in(ElementRange range, DType dtype, const std::byte* elements, size_t count) {
  static const Simd& simd = *available_simd().front();
  if (range.end == 0) return 0;
  if (dtype == DType::kF8) return count_bytes_from(range.begin, elements, count);  // whose only range ends at 0x80
  return simd.count_magnitudes(elements, size_bytes(dtype), count, range.begin, range.end);
}

size_t first_in(ElementRange range, DType dtype, const std::byte* elements) {
  size_t i = 0;
  while (count_in(range, dtype, elements + i * size_bytes(dtype), 1) == 0) ++i;
  return i;
}

}  // namespace lfm2
