// Bulk conversion between element types, for weights that are loaded or rewritten in another type.
#include "base/dtype.h"

#include <cstring>

#include "base/error.h"

namespace lfm2 {

void convert(DType from, const void* source, DType to, void* target, size_t count) {
  if (from == to) {
    if (count > 0) std::memcpy(target, source, count * size_bytes(from));
    return;
  }
  expect(from != DType::kI32 && to != DType::kI32, "convert: int32 is not a float type");
  expect(from != DType::kF8 && to != DType::kF8, "convert: fp8 has scales");
  with_float_type(from, [&](auto from_zero) {
    with_float_type(to, [&](auto to_zero) {
      const auto* in = static_cast<const decltype(from_zero)*>(source);
      auto* out = static_cast<decltype(to_zero)*>(target);
      for (size_t i = 0; i < count; ++i) out[i] = from_float<decltype(to_zero)>(to_float(in[i]));
    });
  });
}

}  // namespace lfm2
