// Concatenation along an axis, and its gradient.
#pragma once

#include "operators/tensor_view.h"

namespace lfm2::operators {

// output[..., s + j, ...] = inputs[i][..., j, ...], where s is the sum of the extents of inputs 0 to i - 1 along
// `axis`. All tensors have one dtype and device and one rank from 1 to 4, and are dense and row-major. Their extents
// are equal except along `axis` (0 <= axis < rank), where those of the inputs add up to the output's. Inputs may be
// empty along the axis. Elements are copied bit for bit. kInvalid for null inputs or data, n < 1, or a wrong dtype,
// device, layout, rank or axis; kShapeMismatch if the extents disagree. A GPU needs one launch on `stream` (a
// cudaStream_t) for every 1024 inputs, without workspace or allocation; launches may be captured into a graph. The
// output must not overlap an input.
Status concat(const TensorView* inputs, int64_t n, const TensorView& output, int axis, void* stream);

enum class GradientMode : int {
  kAdd = 0,    // input_gradients[i] += the slice of the output's gradient, so that the gradients of several uses add up
  kOverwrite,  // input_gradients[i] = the slice; the old values are not read
};

// The gradient of concat: each input's gradient receives its slice of the output's gradient. Sums are computed in fp32
// and rounded once. Shapes, checks and launches are those of concat. The input gradients must not overlap each other.
Status concat_backward(const TensorView& output_gradient, const TensorView* input_gradients, int64_t n, int axis,
                       GradientMode mode, void* stream);

}  // namespace lfm2::operators
