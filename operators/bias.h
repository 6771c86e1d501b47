// Adds a bias, with an activation as epilogue; also the bias' gradient.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// Which element of the bias is added to which elements of a [rows, columns] tensor.
struct BiasLayout {
  // 0: row-wise, bias[column]; the bias has `columns` elements. Otherwise column-wise, bias[row mod rows_per_sample]:
  // the bias has rows_per_sample elements, and the rows are the channels of consecutive samples.
  int64_t rows_per_sample = 0;
};

// output[r, c] = activation(input[r, c] + bias[...]), computed in fp32 and rounded once. `input` and `output` are
// [rows, columns] and dense, `bias` has rank 1 and is dense, and all have one dtype and device. The output may be the
// input. kInvalid if a tensor fails its check, the activation is unknown or rows_per_sample is negative. kShapeMismatch
// if extents disagree or the rows are no multiple of rows_per_sample.
Status bias(const TensorView& input, const TensorView& bias, const TensorView& output, BiasLayout layout,
            Activation activation, void* stream);

// The gradient of bias without an activation. With an activation, first multiply the output's gradient by the
// activation's derivative. The input's gradient equals output_gradient: it is copied unless both are the same memory,
// and not written if input_gradient is null. The bias's gradient is the sum of output_gradient over the elements that
// share a bias. The sum is a reduction in two stages whose shape depends on sizes only. `workspace` has
// bias_backward_workspace() bytes of device memory, aligned to 16 bytes (none on the CPU).
Status bias_backward(const TensorView& output_gradient, const TensorView* input_gradient,
                     const TensorView& bias_gradient, BiasLayout layout, void* workspace, size_t workspace_bytes,
                     void* stream);
Status bias_backward_workspace(const TensorView& output_gradient, BiasLayout layout, size_t& bytes);

}  // namespace lfm2::operators
