// The batched matrix product of strided tensors.
#pragma once

#include "operators/tensor_view.h"

namespace lfm2::operators {

// output[..., i, j] = sum over l of a[..., i, l] b[..., l, j]. The shapes are a [..., m, k], b [..., k, n] and output
// [..., m, n], of rank 2 to kMaxRank. The leading axes of a and b are broadcast to the output's: an axis of extent 1,
// or a missing one, is repeated. All have one dtype and device, and any strides: a transposed operand is a view with
// its last two axes exchanged. With k = 0 the output is zero. Sums are computed in double on the CPU. On a GPU each sum
// is one chain of fp32 multiply-adds over l in order, whatever the strides and the other elements. Sums are rounded
// once. The output must not overlap an input. kInvalid if a tensor fails its check or has a rank below 2.
Status matmul(const TensorView& a, const TensorView& b, const TensorView& output, void* stream);

}  // namespace lfm2::operators
