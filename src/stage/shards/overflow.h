// Finds elements of weights that become infinite in a conversion to another type.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

#include "kernels/element_range.h"
#include "stage/model/tensor_table.h"

namespace lfm2 {

// The index as text, such as "[3, 17]", of the element with this row-major number.
inline std::string index_text(uint64_t element, const std::vector<uint64_t>& dims) {
  std::vector<uint64_t> index(dims.size());
  for (size_t axis = dims.size(); axis-- > 0;) {
    index[axis] = element % dims[axis];
    element /= dims[axis];
  }
  return dims_text(index);
}

// The message that conversion to `to` makes this element infinite.
inline std::string overflow_text(const TensorSpec& spec, double value, uint64_t element, DType to) {
  return fmt::format("tensor {} is {:.9g} at {}, which is infinite in {}", spec.name, value,
                     index_text(element, spec.dims),
                     to == DType::kF16   ? "fp16: expected at most 65504, or bf16 or fp32"
                     : to == DType::kF32 ? "fp32"
                                         : "bf16: expected fp32");
}

// The message for the first of the `count` elements, from element `first` of the tensor on, that conversion makes
// infinite; nothing if none.
inline std::optional<std::string> find_overflow(const TensorSpec& spec, DType from, DType to, uint64_t first,
                                                const std::byte* elements, size_t count) {
  const ElementRange range = overflow_range(from, to);
  if (count_in(range, from, elements, count) == 0) return std::nullopt;
  const size_t at = first_in(range, from, elements);
  float value = 0;
  convert(from, elements + at * size_bytes(from), DType::kF32, &value, 1);
  return overflow_text(spec, static_cast<double>(value), first + at, to);
}

}  // namespace lfm2
