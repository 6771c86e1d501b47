// The numbers that the elements of an fp8 matrix stand for.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace lfm2 {

// values = elements · scale.  [count]
void scale_elements(const F8* elements, int64_t count, float scale, float* values);

// Writes the scaled values of the elements [first, first + count) of a row of an fp8 matrix [rows, k] to `values`, each
// rounded to fp32.
void scale_elements(const Tensor& matrix, int64_t row, int64_t first, int64_t count, float* values);

}  // namespace lfm2
