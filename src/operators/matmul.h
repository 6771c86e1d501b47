// Batched matrix product of strided tensors.
#pragma once

#include "operators/tensor_view.h"

namespace lfm2::operators {

// output[..., i, j] = sum over l of a[..., i, l] b[..., l, j]. a: [..., m, k], b: [..., k, n], output: [..., m, n],
// rank 2 to kMaxRank; the leading axes of a and b are broadcast to the output's (an axis of 1, or a missing one, is
// repeated). One dtype and device, any strides: a transposed operand is a view with its last two axes exchanged. k = 0
// gives zeros. Sums: on the CPU in double, on a GPU one chain of fp32 multiply-adds over l in order, whatever the
// strides and the neighbours; rounded once. The output must not overlap an input. kInvalid: a check of one tensor, rank
// below 2.
Status matmul(const TensorView& a, const TensorView& b, const TensorView& output, void* stream);

}  // namespace lfm2::operators
