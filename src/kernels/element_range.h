// Elements of fp32, bf16, fp16 and fp8 by their magnitudes: those that are NaN or infinite, and those that a conversion
// to another type makes infinite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace lfm2 {

// Elements with begin <= bits without the sign < end. No elements if both are 0.
struct ElementRange {
  uint32_t begin = 0, end = 0;
};

ElementRange non_finite_range(DType dtype);  // NaN and infinity
// Values that are finite in type `from` and round to infinity in type `to`.
ElementRange overflow_range(DType from, DType to);

// The number of elements in the range.
size_t count_in(ElementRange range, DType dtype, const std::byte* elements, size_t count);
// The first element that is in the range; at least one is.
size_t first_in(ElementRange range, DType dtype, const std::byte* elements);

}  // namespace lfm2
