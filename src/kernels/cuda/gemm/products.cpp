// What the four products share: the launch of the chosen kernel, and grouped products.
#include "kernels/cuda/gemm/products.h"

#include "kernels/cuda/gemm/gemm_wgmma.h"

namespace lfm2 {

void Products::multiply(GemmPath path, GemmArgs args, const GemmProblem& problem) {
  args.reserved_sms = reserved_sms_;
  expect(args.scales.w == nullptr || args.scales.a != nullptr || path == GemmPath::kFp8, "product: a is not fp8");
  switch (path) {
    case GemmPath::kCublasLt:
      if (!lt_.multiply(stream_, args, problem)) multiply(choose_grouped(problem), args, problem);
      return;
    case GemmPath::kMma:
      return launch_gemm_mma(stream_, args, problem.act, problem.out);
    case GemmPath::kBf16x3:
      return launch_gemm_bf16x3(stream_, args);
#if LFM2_HAS_SM90A
    case GemmPath::kWgmma:
      if (prefers_skinny(args.m, args.n, args.offsets != nullptr))
        return launch_gemm_skinny(stream_, args, problem.act, problem.out);
      return launch_gemm_wgmma(stream_, args, problem.act, problem.out);
    case GemmPath::kFp8:
      return launch_gemm_fp8(stream_, args);
    case GemmPath::kBf16x3Wgmma:
      return launch_gemm_bf16x3_wgmma(stream_, args);
#else
    case GemmPath::kWgmma:
    case GemmPath::kFp8:
    case GemmPath::kBf16x3Wgmma:
      expect(false, "this build has no code for sm_90a");
      return;
#endif
    case GemmPath::kSimt:
      return launch_gemm_simt(stream_, args, problem.out);
  }
}

// For more rows, a separate quantize is faster.
bool Products::rounds_operand(const Tensor& a, const Tensor& w) const {
  const int64_t max_rows = w.rank == 3 ? 8 : kMaxDirectRows, n = w.dim(w.rank - 2), k = w.k();
  return features_.hopper && a.dtype == DType::kBf16 && w.dtype == DType::kF8 && w.scales.group == 0 &&
         w.scales.rows == 1 && a.dim(0) <= max_rows && k <= kMaxRoundedK && k % 16 == 0 && n % 8 == 0 &&
         on_16_bytes(a) && on_16_bytes(w);
}

GemmScales Products::scales_of(const Tensor& a, const Tensor& w) {
  return {a.scales.data, w.scales.data, a.scales.stride, static_cast<int>(w.scales.rows),
          static_cast<int>(w.scales.group)};
}

// Checks the operands.
Products::Product Products::grouped_product(const Tensor& a, const Tensor& w, const Tensor& expert_offsets,
                                            const Tensor& out, Epilogue epilogue) const {
  const int64_t groups = w.dim(0), n = w.dim(1), k = w.dim(2), out_columns = epilogue == Epilogue::kSwiglu ? n / 2 : n;
  expect(a.rank == 2 && w.rank == 3 && out.rank == 2 && a.dim(1) == k && out.dim(0) == a.dim(0) &&
             out.dim(1) == out_columns,
         "grouped product: shapes");
  expect(!expert_offsets || (expert_offsets.dtype == DType::kI32 && expert_offsets.numel() == groups + 1),
         "grouped product: offsets");
  expect(epilogue != Epilogue::kSwiglu || n % (2 * kGateUpBlock) == 0, "swiglu: a part of a block of gate and up rows");
  const GemmProblem problem{.act = epilogue != Epilogue::kSwiglu && rounds_operand(a, w) ? DType::kF8 : a.dtype,
                            .weight = w.dtype,
                            .out = out.dtype,
                            .n = n,
                            .k = k,
                            .epilogue = epilogue,
                            .aligned = on_16_bytes(a) && on_16_bytes(w) && on_16_bytes(out),
                            .hopper = features_.hopper,
                            .plain_fp32 = features_.plain_fp32,
                            .scale_rows = w.scales.rows,
                            .scale_group = w.scales.group};
  expect(gemm_supported(problem) && (is_float(a) || are_operands(a, w) || rounds_operand(a, w)),
         "grouped product: this combination of types");
  const int32_t* offsets = expert_offsets ? expert_offsets.as<const int32_t>() : nullptr;
  return {.args = {a.data,
                   any(w),
                   {},
                   out.data,
                   offsets,
                   a.dim(0),
                   n,
                   k,
                   groups,
                   epilogue,
                   routing_visible_,
                   0,
                   scales_of(a, w)},
          .problem = problem,
          .path = choose_grouped(problem)};
}

void Products::multiply_groups(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out,
                               Epilogue epilogue) {
  const Product product = grouped_product(a, w, expert_offsets, out, epilogue);
  if (product.args.m == 0 || product.args.n == 0) return;
  multiply(product.path, product.args, product.problem);
  // If the offsets were not visible, the kernel triggers the next kernel only after its own wait, if at all.
  if (expert_offsets) routing_visible_ = Visible::kBeforeWait;
}

}  // namespace lfm2
