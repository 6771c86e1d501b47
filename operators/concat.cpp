// concat: its checks and the CPU's loops.
#include "operators/concat.h"

#include <cstring>

#include "operators/gpu.h"

namespace lfm2::operators {

namespace {

constexpr int kMaxAxes = 4;

Status check_one(const TensorView& view) {
  STATUS_CHECK(check_view(view));
  return view.rank >= 1 && view.rank <= kMaxAxes && is_dense(view) ? Status::kOk : Status::kInvalid;
}

Status check_all(const TensorView* parts, int64_t n, const TensorView& whole, int axis) {
  if (parts == nullptr || n < 1) return Status::kInvalid;
  STATUS_CHECK(check_one(whole));
  if (axis < 0 || axis >= whole.rank) return Status::kInvalid;
  for (int64_t i = 0; i < n; ++i) {
    STATUS_CHECK(check_one(parts[i]));
    if (!same_kind(parts[i], whole) || parts[i].rank != whole.rank) return Status::kInvalid;
  }
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int a = 0; a < whole.rank; ++a)
      if (a != axis && parts[i].dim(a) != whole.dim(a)) return Status::kShapeMismatch;
    if (parts[i].dim(axis) > whole.dim(axis) - sum) return Status::kShapeMismatch;
    sum += parts[i].dim(axis);
  }
  return sum == whole.dim(axis) ? Status::kOk : Status::kShapeMismatch;
}

gpu::ConcatArgs args_of(const TensorView* parts, int64_t n, const TensorView& whole, int axis) {
  gpu::ConcatArgs args{whole.dtype, whole.device, whole.data, parts, n, 1, 0, 1, axis};
  for (int a = 0; a < axis; ++a) args.outer *= whole.dim(a);
  for (int a = axis + 1; a < whole.rank; ++a) args.inner *= whole.dim(a);
  args.row = whole.dim(axis) * args.inner;
  return args;
}

// Calls f(part's bytes, whole's bytes, elements) for every run: one step of the outer axes in one part.
template <class F>
void for_each_run(const gpu::ConcatArgs& args, F&& f) {
  const auto size = static_cast<int64_t>(size_bytes(args.dtype));
  auto* whole = static_cast<std::byte*>(args.whole);
  for (int64_t outer = 0; outer < args.outer; ++outer) {
    for (int64_t i = 0; i < args.count; ++i) {
      const int64_t run = args.parts[i].dim(args.axis) * args.inner;
      if (run == 0) continue;
      f(static_cast<std::byte*>(args.parts[i].data) + outer * run * size, whole, run);
      whole += run * size;
    }
  }
}

}  // namespace

Status concat(const TensorView* inputs, int64_t n, const TensorView& output, int axis, void* stream) {
  STATUS_CHECK(check_all(inputs, n, output, axis));
  if (output.numel() == 0) return Status::kOk;
  const gpu::ConcatArgs args = args_of(inputs, n, output, axis);
  if (output.on_gpu()) return gpu::concat(args, gpu::ConcatWay::kJoin, stream);
  for_each_run(args, [&](std::byte* part, std::byte* whole, int64_t run) {
    std::memcpy(whole, part, static_cast<size_t>(run) * size_bytes(args.dtype));
  });
  return Status::kOk;
}

Status concat_backward(const TensorView& output_gradient, const TensorView* input_gradients, int64_t n, int axis,
                       GradientMode mode, void* stream) {
  if (mode != GradientMode::kAdd && mode != GradientMode::kOverwrite) return Status::kInvalid;
  STATUS_CHECK(check_all(input_gradients, n, output_gradient, axis));
  if (output_gradient.numel() == 0) return Status::kOk;
  const gpu::ConcatArgs args = args_of(input_gradients, n, output_gradient, axis);
  const bool add = mode == GradientMode::kAdd;
  if (output_gradient.on_gpu())
    return gpu::concat(args, add ? gpu::ConcatWay::kSplitAdd : gpu::ConcatWay::kSplitOverwrite, stream);
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_run(args, [&](std::byte* part, const std::byte* whole, int64_t run) {
      if (!add) {
        std::memcpy(part, whole, static_cast<size_t>(run) * sizeof(T));
        return;
      }
      auto* sums = reinterpret_cast<T*>(part);
      const auto* slice = reinterpret_cast<const T*>(whole);
      for (int64_t i = 0; i < run; ++i) sums[i] = from_float<T>(to_float(sums[i]) + to_float(slice[i]));
    });
  });
  return Status::kOk;
}

}  // namespace lfm2::operators
