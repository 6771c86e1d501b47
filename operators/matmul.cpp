// matmul: its checks and the CPU's loops.
#include "operators/matmul.h"

#include <vector>

#include "operators/gpu.h"
#include "operators/matmul_plan.h"

namespace lfm2::operators {

namespace {

Status plan_matmul(const TensorView& a, const TensorView& b, const TensorView& output, MatmulPlan& plan) {
  STATUS_CHECK(check_view(a));
  STATUS_CHECK(check_view(b));
  STATUS_CHECK(check_output(output));
  if (!same_kind(a, output) || !same_kind(b, output) || a.rank < 2 || b.rank < 2 || output.rank < 2)
    return Status::kInvalid;
  const auto last = [](const TensorView& view, int back) { return view.rank - back; };
  plan.m = output.dim(last(output, 2));
  plan.n = output.dim(last(output, 1));
  plan.k = a.dim(last(a, 1));
  if (a.dim(last(a, 2)) != plan.m || b.dim(last(b, 1)) != plan.n || b.dim(last(b, 2)) != plan.k)
    return Status::kShapeMismatch;
  plan.a_m = a.stride(last(a, 2)), plan.a_k = a.stride(last(a, 1));
  plan.b_k = b.stride(last(b, 2)), plan.b_n = b.stride(last(b, 1));
  plan.output_m = output.stride(last(output, 2)), plan.output_n = output.stride(last(output, 1));
  plan.dtype = output.dtype, plan.device = output.device;
  plan.a = a.data, plan.b = b.data, plan.output = output.data;

  TensorView batches[3] = {output, a, b};
  for (TensorView& view : batches) view.rank -= 2;
  Extents strides[3] = {output.strides};
  STATUS_CHECK(broadcast_strides(batches[1], batches[0], strides[1]));
  STATUS_CHECK(broadcast_strides(batches[2], batches[0], strides[2]));
  for (int axis = batches[0].rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<size_t>(axis);
    add_loop<3>(plan.batch, output.dims[i], {strides[0][i], strides[1][i], strides[2][i]});
  }
  tidy(plan.batch);
  return Status::kOk;
}

template <class T>
void multiply_on_cpu(const MatmulPlan& plan, const T* a, const T* b, T* out, std::vector<double>& sums) {
  for (int64_t i = 0; i < plan.m; ++i) {
    sums.assign(static_cast<size_t>(plan.n), 0.0);
    for (int64_t l = 0; l < plan.k; ++l) {
      const auto x = static_cast<double>(to_float(a[i * plan.a_m + l * plan.a_k]));
      const T* row = b + l * plan.b_k;
      for (int64_t j = 0; j < plan.n; ++j)
        sums[static_cast<size_t>(j)] += x * static_cast<double>(to_float(row[j * plan.b_n]));
    }
    for (int64_t j = 0; j < plan.n; ++j)
      out[i * plan.output_m + j * plan.output_n] = from_float<T>(static_cast<float>(sums[static_cast<size_t>(j)]));
  }
}

}  // namespace

Status matmul(const TensorView& a, const TensorView& b, const TensorView& output, void* stream) {
  MatmulPlan plan;
  STATUS_CHECK(plan_matmul(a, b, output, plan));
  if (output.numel() == 0) return Status::kOk;
  if (output.on_gpu()) return gpu::matmul(plan, stream);
  with_float_type(plan.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<double> sums;
    const int64_t inner = plan.batch.rank > 0 ? plan.batch.dims[0] : 1;
    for_each_row(plan.batch, [&](const int64_t(&positions)[3]) {
      for (int64_t i = 0; i < inner; ++i)
        multiply_on_cpu(plan, static_cast<const T*>(plan.a) + positions[1] + i * plan.batch.strides[1][0],
                        static_cast<const T*>(plan.b) + positions[2] + i * plan.batch.strides[2][0],
                        static_cast<T*>(plan.output) + positions[0] + i * plan.batch.strides[0][0], sums);
    });
  });
  return Status::kOk;
}

}  // namespace lfm2::operators
