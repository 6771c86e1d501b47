// grouped_matmul: each expert's product with the rows that were sorted to it.
#include "kernels/cuda/gemm/products.h"

namespace lfm2 {

void Products::grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) {
  multiply_groups(a, w, expert_offsets, out, Epilogue::kStore);
}

std::optional<GemmArgs> Products::few_grouped_rows_args(const Tensor& a, const Tensor& w, const Tensor& expert_offsets,
                                                        const Tensor& out, Epilogue epilogue) const {
  const Product product = grouped_product(a, w, expert_offsets, out, epilogue);
  if (product.args.m == 0 || product.args.n == 0) return std::nullopt;
  const bool skinny = product.path == GemmPath::kWgmma ? prefers_skinny(product.args.m, product.args.n, true)
                                                       : product.path == GemmPath::kFp8;
  if (!skinny || (w.dtype != DType::kF8 && out.dtype != a.dtype)) return std::nullopt;
  return product.args;
}

}  // namespace lfm2
