// A checked matrix product: sizes, strides, and the walk over the batch.
#pragma once

#include "operators/tensor_view.h"
#include "operators/walk.h"

namespace lfm2::operators {

struct MatmulPlan {
  DType dtype = DType::kF32;
  int device = kCpu;
  const void* a = nullptr;
  const void* b = nullptr;
  void* output = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t a_m = 0, a_k = 0, b_k = 0, b_n = 0, output_m = 0, output_n = 0;  // strides, in elements
  Walk<3> batch;                                                           // operands: output, a, b
};

}  // namespace lfm2::operators
