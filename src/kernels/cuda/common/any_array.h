// An array whose element type is chosen at run time.
#pragma once

#include "base/dtype.h"

namespace lfm2 {

// A weight or a table: fp32, bf16 or fp16.
struct AnyArray {
  const void* data = nullptr;  // null where there is no array
  DType dtype = DType::kF32;
};

}  // namespace lfm2
