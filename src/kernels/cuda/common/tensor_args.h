// Small functions that check a Tensor and turn it into a launcher's argument.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/any_array.h"
#include "kernels/tensor.h"

namespace lfm2 {

inline AnyArray any(const Tensor& x) { return {x ? x.data : nullptr, x.dtype}; }

inline RoundedRows rounded_rows(const Tensor& x) {
  if (x.dtype != DType::kF8) return {};
  expect(x.scales.rows == 1 && (x.scales.group == 0 || x.scales.group == kScaledGroup) && x.scales.stride >= x.dim(0) &&
             (x.scales.data != nullptr || x.dim(0) == 0),
         "fp8 rows: scales");
  return {x.as<uint8_t>(), x.scales.data, x.scales.stride, x.scales.group != 0};
}

inline bool on_16_bytes(const Tensor& x) { return (reinterpret_cast<uintptr_t>(x.data) & 15u) == 0; }

}  // namespace lfm2
