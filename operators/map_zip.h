// Elementwise functions of one and of two strided tensors, with broadcasting.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// Computes output[i] = f(input[i]) for every index of the output; the input is broadcast to the output's shape. Both
// have one dtype and device. Strides are arbitrary, but no two elements of the output may share memory. Results are
// computed in fp32 and rounded once. The output may be the input itself; any other overlap gives undefined values.
// kShapeMismatch if the input cannot be broadcast.
Status map(UnaryFunction function, const TensorView& input, const TensorView& output, void* stream);

// Computes output[i] = f(a[i], b[i]). Both inputs are broadcast to the output's shape, which may be larger than theirs.
Status zip(BinaryFunction function, const TensorView& a, const TensorView& b, const TensorView& output, void* stream);

}  // namespace lfm2::operators
