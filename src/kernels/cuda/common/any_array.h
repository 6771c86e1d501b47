// An array whose element type is chosen at run time.
#pragma once

#include "kernels/dtype.h"

namespace lfm2 {

// Weights and tables: fp32, bf16 or fp16.
struct AnyArray {
  const void* data = nullptr;  // null: none
  DType dtype = DType::kF32;
};

}  // namespace lfm2
