// Elements of weights that a conversion to another type makes infinite, and those that are NaN or infinite already:
// found by their bits, many at a time.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "kernels/dtype.h"
#include "stage/model/tensor_table.h"

namespace lfm2 {

// Elements of these magnitudes: first <= bits without the sign < end.
struct ElementRange {
  uint32_t first = 0, end = 0;
};

// NaN and infinity.
inline ElementRange non_finite_range(DType dtype) {
  return dtype == DType::kF32    ? ElementRange{0x7f800000u, 0x80000000u}
         : dtype == DType::kBf16 ? ElementRange{0x7f80u, 0x8000u}
                                 : ElementRange{0x7c00u, 0x8000u};
}

// What is finite in type `from` and is rounded to infinity in type `to`: from half a step above the largest number on.
inline ElementRange overflow_range(DType from, DType to) {
  if (from == DType::kF32 && to == DType::kF16) return {0x477ff000u, 0x7f800000u};
  if (from == DType::kF32 && to == DType::kBf16) return {0x7f7f8000u, 0x7f800000u};
  if (from == DType::kBf16 && to == DType::kF16) return {0x4780u, 0x7f80u};
  return {};
}

template <class Bits>
bool is_in(ElementRange range, const std::byte* elements, size_t index) {
  Bits bits{};
  std::memcpy(&bits, elements + index * sizeof(Bits), sizeof(Bits));
  const auto magnitude = static_cast<Bits>(bits & static_cast<Bits>(~Bits{0}) >> 1);
  const auto width = static_cast<Bits>(range.end - range.first);
  return static_cast<Bits>(magnitude - static_cast<Bits>(range.first)) < width;
}

// Blocks of a fixed size, which compilers make vectors of.
template <class Bits>
uint64_t count_bits_in(ElementRange range, const std::byte* elements, size_t count) {
  constexpr size_t kBlock = 256;
  uint64_t found = 0;
  size_t done = 0;
  for (; done + kBlock <= count; done += kBlock) {
    Bits in_block = 0;
    for (size_t i = 0; i < kBlock; ++i)
      in_block = static_cast<Bits>(in_block + (is_in<Bits>(range, elements, done + i) ? 1 : 0));
    found += in_block;
  }
  for (; done < count; ++done) found += is_in<Bits>(range, elements, done) ? 1 : 0;
  return found;
}

// How many of the elements are in the range.
inline uint64_t count_in(ElementRange range, DType dtype, const std::byte* elements, size_t count) {
  if (range.end == 0) return 0;
  return dtype == DType::kF32 ? count_bits_in<uint32_t>(range, elements, count)
                              : count_bits_in<uint16_t>(range, elements, count);
}

// The first element that is in the range; at least one is.
inline size_t first_in(ElementRange range, DType dtype, const std::byte* elements) {
  size_t i = 0;
  while (!(dtype == DType::kF32 ? is_in<uint32_t>(range, elements, i) : is_in<uint16_t>(range, elements, i))) ++i;
  return i;
}

// The index, such as "[3, 17]", of the element with this number in row-major order.
inline std::string index_text(uint64_t element, const std::vector<uint64_t>& dims) {
  std::vector<uint64_t> index(dims.size());
  for (size_t axis = dims.size(); axis-- > 0;) {
    index[axis] = element % dims[axis];
    element /= dims[axis];
  }
  return dims_text(index);
}

// Where `elements`, the `count` elements of a tensor from element `first` on, hold one that conversion would make
// infinite: the text that says so.
inline std::optional<std::string> find_overflow(const TensorSpec& spec, DType from, DType to, uint64_t first,
                                                const std::byte* elements, size_t count) {
  const ElementRange range = overflow_range(from, to);
  if (count_in(range, from, elements, count) == 0) return std::nullopt;
  const size_t at = first_in(range, from, elements);
  float value = 0;
  convert(from, elements + at * size_bytes(from), DType::kF32, &value, 1);
  return fmt::format("tensor {} is {:.9g} at {}, which is infinite in {}", spec.name, value,
                     index_text(first + at, spec.dims),
                     to == DType::kF16 ? "fp16: expected at most 65504, or bf16 or fp32" : "bf16: expected fp32");
}

}  // namespace lfm2
