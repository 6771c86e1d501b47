// Concatenation along an axis, and its gradient.
#pragma once

#include "operators/tensor_view.h"

namespace lfm2::operators {

// output[..., s + j, ...] = inputs[i][..., j, ...], where s is the sum of the extents of inputs 0 to i - 1 along
// `axis`. All tensors: one dtype and device, one rank from 1 to 4, dense and row-major, with equal extents but along
// `axis` (0 <= axis < rank), where the inputs' sum to the output's. Inputs may be empty along the axis. Bits are copied
// as they are. kInvalid: inputs or data null, n < 1, dtype, device, layout, rank or axis; kShapeMismatch: the extents
// disagree. On a GPU: one launch on `stream` (a cudaStream_t) for any number of inputs up to 1024 and one for every
// further 1024, no workspace, no allocation; it may be captured into a graph. The output must not overlap an input.
Status concat(const TensorView* inputs, int64_t n, const TensorView& output, int axis, void* stream);

enum class GradientMode : int {
  kAdd = 0,    // input_gradients[i] += the slice of the output's gradient: gradients of several uses sum up
  kOverwrite,  // input_gradients[i] = the slice; what was there is not read
};

// The gradient of concat: each input's gradient gets its slice of the output's. Sums are formed in fp32 and rounded
// once. Shapes, checks and launches as for concat. The input gradients must not overlap each other.
Status concat_backward(const TensorView& output_gradient, const TensorView* input_gradients, int64_t n, int axis,
                       GradientMode mode, void* stream);

}  // namespace lfm2::operators
