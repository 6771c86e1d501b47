// The matrix products of Ops: they check operands, choose a kernel (gemm_plan.h) and launch it. CudaOps owns one and
// forwards its four products.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/cuda/common/tensor_args.h"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/gemm/lt_matmul.h"
#include "kernels/ops.h"

namespace lfm2 {

class Products {
 public:
  struct Features {
    bool hopper = false;      // sm_90a: the GPU has the instructions, and this build has the code
    bool plain_fp32 = false;  // fp32 products use FFMA only
  };

  Products(cudaStream_t stream, Features features, Buffer lt_workspace)
      : stream_(stream), features_(features), lt_(std::move(lt_workspace)) {}

  void reserve_sms(int sms) { reserved_sms_ = sms; }  // as Backend's
  int reserved_sms() const { return reserved_sms_; }

  // Each is defined in the file of its name; kernels/ops.h defines what they compute.
  void matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write);
  void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out);
  void grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out);
  void grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out);

  // Ops::rounds_operand.
  bool rounds_operand(const Tensor& a, const Tensor& w) const;

  // The arguments of matmul if it would use launch_gemm_skinny and write out in the type of a.
  std::optional<GemmArgs> skinny_args(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out) const;
  // The arguments of matmul if it would use launch_gemm_fp8; none if there are no rows or columns.
  std::optional<GemmArgs> fp8_args(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out,
                                   Write write) const;
  // The same as skinny_args for grouped_matmul (kStore) or grouped_swiglu (kSwiglu), or the arguments for
  // launch_gemm_fp8; none if there are no rows or columns.
  std::optional<GemmArgs> few_grouped_rows_args(const Tensor& a, const Tensor& w, const Tensor& expert_offsets,
                                                const Tensor& out, Epilogue epilogue) const;

  // When the next kernel may read all routings: what the last launcher that wrote a routing returned, or kBeforeWait
  // after a grouped product.
  Visible routing_visible() const { return routing_visible_; }
  void set_routing_visible(Visible visible) { routing_visible_ = visible; }

 private:
  struct Product {
    GemmArgs args;
    GemmProblem problem;
    GemmPath path;
  };
  Product dense_product(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) const;
  Product grouped_product(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out,
                          Epilogue epilogue) const;
  // Multiplies each group's rows by its matrix w[group], or, without offsets, all rows by the only matrix.
  void multiply_groups(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out,
                       Epilogue epilogue);
  static GemmScales scales_of(const Tensor& a, const Tensor& w);
  void multiply(GemmPath path, GemmArgs args, const GemmProblem& problem);

  cudaStream_t stream_;
  Features features_;
  LtMatmul lt_;
  Visible routing_visible_ = Visible::kAfterWait;
  int reserved_sms_ = 0;
};

}  // namespace lfm2
