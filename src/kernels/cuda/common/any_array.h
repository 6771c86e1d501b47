// An array whose element type is chosen at run time.
#pragma once

#include "base/dtype.h"

namespace lfm2 {

// A weight or a table: fp32, bf16 or fp16.
struct AnyArray {
  const void* data = nullptr;  // null if there is no array
  DType dtype = DType::kF32;
};

inline constexpr int kScaledGroup = 128;  // elements that share a scale if a row has several
// Rows that a kernel rounds to fp8, as Ops::quantize does (kernels/ops.h), or none.
struct RoundedRows {
  uint8_t* elements = nullptr;  // [rows, n] fp8
  float* scales = nullptr;      // [groups, stride]
  int64_t stride = 0;
  bool by_group = false;  // a row has a scale for each kScaledGroup elements; otherwise one
};

}  // namespace lfm2
