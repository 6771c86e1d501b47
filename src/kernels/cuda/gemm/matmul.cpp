// matmul: one dense product, with an optional bias and an optional addition to the old output.
#include "kernels/cuda/gemm/products.h"

namespace lfm2 {

// Checks the operands.
Products::Product Products::dense_product(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out,
                                          Write write) const {
  const int64_t m = a.dim(0), n = w.dim(0), k = w.dim(1);
  expect(a.rank == 2 && w.rank == 2 && out.rank == 2 && a.dim(1) == k && out.dim(0) == m && out.dim(1) == n &&
             (!bias || bias.numel() == n),
         "matmul: shapes");
  const Epilogue epilogue = write == Write::kAdd ? Epilogue::kAdd : Epilogue::kStore;
  const GemmProblem problem{
      .act = rounds_operand(a, w) ? DType::kF8 : a.dtype,
      .weight = w.dtype,
      .out = out.dtype,
      .n = n,
      .k = k,
      .bias = static_cast<bool>(bias),
      .epilogue = epilogue,
      .aligned = on_16_bytes(a) && on_16_bytes(w) && on_16_bytes(out) && (!bias || on_16_bytes(bias)),
      .hopper = features_.hopper,
      .plain_fp32 = features_.plain_fp32,
      .scale_rows = w.scales.rows,
      .scale_group = w.scales.group};
  expect(gemm_supported(problem) && (is_float(a) || are_operands(a, w) || rounds_operand(a, w)) &&
             (!bias || is_float(bias)),
         "matmul: this combination of types");
  const bool same_bias = !bias || bias.dtype == w.dtype;
  return {.args = {a.data, any(w), any(bias), out.data, nullptr, m, n, k, 1, epilogue, Visible::kAfterWait, 0,
                   scales_of(a, w)},
          .problem = problem,
          .path = same_bias ? choose_dense(problem) : choose_grouped(problem)};
}

void Products::matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) {
  const Product product = dense_product(a, w, bias, out, write);
  if (product.args.m == 0 || product.args.n == 0) return;
  multiply(product.path, product.args, product.problem);
}

std::optional<GemmArgs> Products::skinny_args(const Tensor& a, const Tensor& w, const Tensor& bias,
                                              const Tensor& out) const {
  const Product product = dense_product(a, w, bias, out, Write::kStore);
  const bool skinny = product.path == GemmPath::kWgmma && prefers_skinny(product.args.m, product.args.n, false);
  if (!skinny || out.dtype != a.dtype) return std::nullopt;
  return product.args;
}

std::optional<GemmArgs> Products::fp8_args(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out,
                                           Write write) const {
  const Product product = dense_product(a, w, bias, out, write);
  if (product.path != GemmPath::kFp8 || product.args.m == 0 || product.args.n == 0) return std::nullopt;
  return product.args;
}

}  // namespace lfm2
