// norm_matmul: rms_norm and one dense product behind it.
#include "kernels/cuda/gemm/products.h"

namespace lfm2 {

std::optional<FrontNormArgs> Products::front_norm_args(const GemmArgs& product, DType act, const Tensor& norm_weight,
                                                       float eps) {
  if (product.m > kMaxFrontNormedRows || product.k > kMaxFrontNormedK || norm_weight.dtype != act ||
      !on_16_bytes(norm_weight))
    return std::nullopt;
  return FrontNormArgs{any(norm_weight), eps};
}

bool Products::norm_matmul([[maybe_unused]] const Tensor& x, [[maybe_unused]] const Tensor& norm_weight,
                           [[maybe_unused]] float eps, [[maybe_unused]] const Tensor& w,
                           [[maybe_unused]] const Tensor& bias, [[maybe_unused]] const Tensor& out) {
#if LFM2_HAS_SM90A
  if (const auto product = few_rows_args(x, w, bias, out))
    if (const auto norm = front_norm_args(*product, x.dtype, norm_weight, eps)) {
      launch_norm_gemm_few_rows(stream_, *product, *norm, x.dtype);
      return true;
    }
#endif
  return false;
}

}  // namespace lfm2
