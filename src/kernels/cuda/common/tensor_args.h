// Small functions that check a Tensor and turn it into a launcher's argument.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/any_array.h"
#include "kernels/tensor.h"

namespace lfm2 {

inline AnyArray any(const Tensor& x) { return {x ? x.data : nullptr, x.dtype}; }

inline bool on_16_bytes(const Tensor& x) { return (reinterpret_cast<uintptr_t>(x.data) & 15u) == 0; }

}  // namespace lfm2
