// map and zip: their checks, broadcasting, and the CPU's loops.
#include "operators/map_zip.h"

#include "operators/gpu.h"
#include "operators/walk.h"

namespace lfm2::operators {

namespace {

// The walk through an output (operand 0) and inputs that are broadcast to it.
template <int kOperands>
Status plan_walk(const TensorView& output, const TensorView* const (&inputs)[kOperands - 1], Walk<kOperands>& walk) {
  STATUS_CHECK(check_output(output));
  for (const TensorView* input : inputs) {
    STATUS_CHECK(check_view(*input));
    if (!same_kind(*input, output)) return Status::kInvalid;
  }
  Extents strides[kOperands];
  strides[0] = output.strides;
  for (int i = 1; i < kOperands; ++i) STATUS_CHECK(broadcast_strides(*inputs[i - 1], output, strides[i]));
  for (int axis = output.rank - 1; axis >= 0; --axis) {
    int64_t of_axis[kOperands];
    for (int i = 0; i < kOperands; ++i) of_axis[i] = strides[i][static_cast<size_t>(axis)];
    add_loop(walk, output.dim(axis), of_axis);
  }
  tidy(walk);
  return Status::kOk;
}

constexpr int kPiece = 16;  // elements that are computed with one choice of the function

// Converts elements first, first + 1, ... of the innermost loop to fp32.
template <class T>
void gather(const T* from, int64_t stride, int64_t count, float (&x)[kPiece]) {
  for (int64_t i = 0; i < count; ++i) x[i] = to_float(from[i * stride]);
}

// Calls f(x, positions, first, count) for every piece: it makes the results in x[], which holds operand 1's elements.
template <class T, int kOperands, class F>
void run_on_cpu(const Walk<kOperands>& walk, const TensorView& output, const TensorView& input, F&& f) {
  auto* out = static_cast<T*>(output.data);
  const auto* in = static_cast<const T*>(input.data);
  const int64_t inner = walk.rank > 0 ? walk.dims[0] : 1;
  for_each_row(walk, [&](const int64_t(&positions)[kOperands]) {
    for (int64_t first = 0; first < inner; first += kPiece) {
      const int64_t count = inner - first < kPiece ? inner - first : kPiece;
      float x[kPiece] = {};
      gather(in + positions[1] + first * walk.strides[1][0], walk.strides[1][0], count, x);
      f(x, positions, first, count);
      T* target = out + positions[0] + first * walk.strides[0][0];
      for (int64_t i = 0; i < count; ++i) target[i * walk.strides[0][0]] = from_float<T>(x[i]);
    }
  });
}

}  // namespace

Status map(UnaryFunction function, const TensorView& input, const TensorView& output, void* stream) {
  if (!is_known(function)) return Status::kInvalid;
  Walk<2> walk;
  STATUS_CHECK(plan_walk<2>(output, {&input}, walk));
  if (output.numel() == 0) return Status::kOk;
  if (output.on_gpu()) return gpu::map(function, input, output, walk, stream);
  with_float_type(output.dtype, [&](auto zero) {
    run_on_cpu<decltype(zero)>(walk, output, input, [&](float(&x)[kPiece], const int64_t(&)[2], int64_t, int64_t) {
      is_trigonometric(function) ? apply_trigonometric(function, x) : apply(function, x);
    });
  });
  return Status::kOk;
}

Status zip(BinaryFunction function, const TensorView& a, const TensorView& b, const TensorView& output, void* stream) {
  if (!is_known(function)) return Status::kInvalid;
  Walk<3> walk;
  STATUS_CHECK(plan_walk<3>(output, {&a, &b}, walk));
  if (output.numel() == 0) return Status::kOk;
  if (output.on_gpu()) return gpu::zip(function, a, b, output, walk, stream);
  with_float_type(output.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* second = static_cast<const T*>(b.data);
    run_on_cpu<T>(walk, output, a, [&](float(&x)[kPiece], const int64_t(&positions)[3], int64_t first, int64_t count) {
      float y[kPiece] = {};
      gather(second + positions[2] + first * walk.strides[2][0], walk.strides[2][0], count, y);
      apply(function, x, y);
    });
  });
  return Status::kOk;
}

}  // namespace lfm2::operators
