// bias: its checks and the CPU's loops. The gradient is a reduction over a view.
#include "operators/bias.h"

#include "operators/gpu.h"
#include "operators/map_zip.h"
#include "operators/reduce.h"

namespace lfm2::operators {

namespace {

Status check_bias(const TensorView& matrix, const TensorView& bias, BiasLayout layout) {
  STATUS_CHECK(check_view(matrix));
  STATUS_CHECK(check_view(bias));
  if (matrix.rank != 2 || bias.rank != 1 || !is_dense(matrix) || !is_dense(bias) || !same_kind(matrix, bias) ||
      layout.rows_per_sample < 0)
    return Status::kInvalid;
  if (layout.rows_per_sample == 0) return bias.dim(0) == matrix.dim(1) ? Status::kOk : Status::kShapeMismatch;
  const bool fits = matrix.dim(0) % layout.rows_per_sample == 0 && bias.dim(0) == layout.rows_per_sample;
  return fits ? Status::kOk : Status::kShapeMismatch;
}

// Views the gradient as [samples, rows per sample, columns], or unchanged if rows_per_sample is 0, and returns the axes
// over which a bias is shared.
Status shared_view(const TensorView& gradient, BiasLayout layout, TensorView& view, uint32_t& axes) {
  STATUS_CHECK(check_view(gradient));
  if (gradient.rank != 2 || layout.rows_per_sample < 0) return Status::kInvalid;
  view = gradient;
  axes = 1u;
  if (layout.rows_per_sample == 0) return Status::kOk;
  if (gradient.dim(0) % layout.rows_per_sample != 0) return Status::kShapeMismatch;
  view =
      TensorView(gradient.data, gradient.dtype,
                 {gradient.dim(0) / layout.rows_per_sample, layout.rows_per_sample, gradient.dim(1)}, gradient.device);
  axes = 1u | 1u << 2;
  return Status::kOk;
}

}  // namespace

Status bias(const TensorView& input, const TensorView& bias, const TensorView& output, BiasLayout layout,
            Activation activation, void* stream) {
  if (!is_known(activation)) return Status::kInvalid;
  STATUS_CHECK(check_bias(input, bias, layout));
  STATUS_CHECK(check_view(output));
  if (!is_dense(output) || !same_kind(input, output)) return Status::kInvalid;
  if (!same_shape(input, output)) return Status::kShapeMismatch;
  if (output.numel() == 0) return Status::kOk;
  if (output.on_gpu()) return gpu::bias(input, bias, output, layout, activation, stream);
  with_float_type(input.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* in = static_cast<const T*>(input.data);
    const auto* shift = static_cast<const T*>(bias.data);
    auto* out = static_cast<T*>(output.data);
    const int64_t columns = input.dim(1);
    for (int64_t row = 0; row < input.dim(0); ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t i = row * columns + column;
        const int64_t own = layout.rows_per_sample == 0 ? column : row % layout.rows_per_sample;
        float x[1] = {to_float(in[i]) + to_float(shift[own])};
        apply(activation, x);
        out[i] = from_float<T>(x[0]);
      }
    }
  });
  return Status::kOk;
}

Status bias_backward(const TensorView& output_gradient, const TensorView* input_gradient,
                     const TensorView& bias_gradient, BiasLayout layout, void* workspace, size_t workspace_bytes,
                     void* stream) {
  STATUS_CHECK(check_bias(output_gradient, bias_gradient, layout));
  if (input_gradient != nullptr) {
    STATUS_CHECK(check_view(*input_gradient));
    if (!is_dense(*input_gradient) || !same_kind(output_gradient, *input_gradient)) return Status::kInvalid;
    if (!same_shape(output_gradient, *input_gradient)) return Status::kShapeMismatch;
  }
  TensorView view;
  uint32_t axes = 0;
  STATUS_CHECK(shared_view(output_gradient, layout, view, axes));
  STATUS_CHECK(reduce(ReduceFunction::kSum, view, bias_gradient, axes, workspace, workspace_bytes, stream));
  if (input_gradient == nullptr || input_gradient->data == output_gradient.data) return Status::kOk;
  return map(UnaryFunction::kIdentity, output_gradient, *input_gradient, stream);
}

Status bias_backward_workspace(const TensorView& output_gradient, BiasLayout layout, size_t& bytes) {
  TensorView view;
  uint32_t axes = 0;
  STATUS_CHECK(shared_view(output_gradient, layout, view, axes));
  return reduce_workspace(view, axes, bytes);
}

}  // namespace lfm2::operators
