// reduce: its checks and the CPU's loops.
#include "operators/reduce.h"

#include <limits>

#include "operators/gpu.h"
#include "operators/reduce_plan.h"

namespace lfm2::operators {

namespace {

double neutral(ReduceFunction function) {
  switch (function) {
    case ReduceFunction::kProd:
      return 1;
    case ReduceFunction::kMax:
      return -std::numeric_limits<double>::infinity();
    case ReduceFunction::kMin:
      return std::numeric_limits<double>::infinity();
    case ReduceFunction::kSum:
    case ReduceFunction::kMean:
    case ReduceFunction::kCount:
      break;
  }
  return 0;
}

double combine(ReduceFunction function, double a, double b) {
  switch (function) {
    case ReduceFunction::kProd:
      return a * b;
    case ReduceFunction::kMax:
      return a >= b || a != a ? a : b;
    case ReduceFunction::kMin:
      return a <= b || a != a ? a : b;
    case ReduceFunction::kSum:
    case ReduceFunction::kMean:
    case ReduceFunction::kCount:
      break;
  }
  return a + b;
}

template <class T>
void reduce_on_cpu(const ReducePlan& plan) {
  const int64_t kept_inner = plan.kept.rank > 0 ? plan.kept.dims[0] : 1;
  const int64_t inner = plan.reduced.rank > 0 ? plan.reduced.dims[0] : 1;
  for_each_row(plan.kept, [&](const int64_t(&positions)[2]) {
    for (int64_t i = 0; i < kept_inner; ++i) {
      const T* from = static_cast<const T*>(plan.input) + positions[0] + i * plan.kept.strides[0][0];
      double result = neutral(plan.function);
      for_each_row(plan.reduced, [&](const int64_t(&start)[1]) {
        const T* row = from + start[0];
        for (int64_t j = 0; j < inner; ++j)
          result = combine(plan.function, result, static_cast<double>(to_float(row[j * plan.reduced.strides[0][0]])));
      });
      if (plan.function == ReduceFunction::kMean) result /= static_cast<double>(plan.length);
      static_cast<T*>(plan.output)[positions[1] + i * plan.kept.strides[1][0]] =
          from_float<T>(static_cast<float>(result));
    }
  });
}

}  // namespace

Status reduce(ReduceFunction function, const TensorView& input, const TensorView& output, uint32_t axes,
              void* workspace, size_t workspace_bytes, void* stream) {
  if (!is_known(function)) return Status::kInvalid;
  ReducePlan plan;
  STATUS_CHECK(plan_reduce(input, &output, axes, plan));
  plan.function = function;
  plan.output = output.data;
  if (plan.outputs == 0) return Status::kOk;
  if (plan.length == 0 && (function == ReduceFunction::kMax || function == ReduceFunction::kMin))
    return Status::kInvalid;
  if (input.on_gpu()) {
    if (plan.workspace_bytes() > workspace_bytes) return Status::kInvalid;
    if (plan.workspace_bytes() > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0))
      return Status::kInvalid;
    return gpu::reduce(plan, workspace, stream);
  }
  with_float_type(plan.dtype, [&](auto zero) { reduce_on_cpu<decltype(zero)>(plan); });
  return Status::kOk;
}

Status reduce_workspace(const TensorView& input, uint32_t axes, size_t& bytes) {
  ReducePlan plan;
  STATUS_CHECK(plan_reduce(input, nullptr, axes, plan));
  bytes = input.on_gpu() ? plan.workspace_bytes() : 0;
  return Status::kOk;
}

}  // namespace lfm2::operators
