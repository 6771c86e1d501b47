// The rules that choose a product's kernel, from its types, dimensions and alignment, and from the GPU's features. Only
// Hopper's kernels and cuBLASLt need regular dimensions and aligned operands; the others accept everything else.
#include "kernels/cuda/gemm/gemm_plan.h"

namespace lfm2 {

namespace {
// Rows of a multiple of this number of elements start on 16 bytes, in types of 16 and 32 bits.
constexpr int64_t kVector = 8;

GemmPath choose_fp8(const GemmProblem& problem) {
  const bool swiglu = problem.epilogue == Epilogue::kSwiglu;
  const bool regular = problem.aligned && problem.k > 0 && problem.k % 16 == 0 && problem.n > 0 &&
                       problem.n % (swiglu ? 2 * kVector : kVector) == 0 && problem.out == DType::kBf16;
  const bool known_scales =
      problem.scale_group == 0 ? problem.scale_rows == 1 : problem.scale_group == 128 && problem.scale_rows == 8;
  return problem.hopper && regular && known_scales ? GemmPath::kFp8 : GemmPath::kSimt;
}
}  // namespace

bool gemm_supported(const GemmProblem& problem) {
  if (problem.act == DType::kI32 || problem.weight == DType::kI32) return false;
  if (problem.act == DType::kF8 || problem.weight == DType::kF8) return problem.act == problem.weight;
  if (problem.out != problem.act && problem.out != DType::kF32) return false;
  return problem.act == DType::kF32 || problem.act == problem.weight;
}

GemmPath choose_grouped(const GemmProblem& problem) {
  if (problem.act == DType::kF8) return choose_fp8(problem);
  const int64_t columns = problem.epilogue == Epilogue::kSwiglu ? 2 * kVector : kVector;
  const bool regular = problem.aligned && problem.k > 0 && problem.k % kVector == 0;
  const bool hopper = problem.hopper && regular && problem.n > 0 && problem.n % columns == 0;
  if (problem.act != DType::kF32) return hopper ? GemmPath::kWgmma : GemmPath::kMma;
  if (problem.plain_fp32 || problem.weight == DType::kF16) return GemmPath::kSimt;
  if (hopper) return GemmPath::kBf16x3Wgmma;
  return problem.weight == DType::kBf16 && regular ? GemmPath::kBf16x3 : GemmPath::kSimt;
}

GemmPath choose_dense(const GemmProblem& problem) {
  const GemmPath own = choose_grouped(problem);
  if (problem.act == DType::kF8) return own;
  // These are as fast as cuBLASLt in large products and faster in small ones, where cuBLASLt would have to use the
  // algorithm of the large ones, so that the bits stay the same.
  if (own == GemmPath::kBf16x3Wgmma || own == GemmPath::kWgmma) return own;
  // cuBLASLt's Hopper kernels round a 16-bit product before they add the old value, so the result is rounded twice.
  const bool rounds_twice = problem.epilogue == Epilogue::kAdd && problem.out != DType::kF32;
  const bool regular = problem.aligned && !rounds_twice && problem.epilogue != Epilogue::kSwiglu && problem.n > 0 &&
                       problem.k > 0 && problem.n % kVector == 0 && problem.k % kVector == 0 &&
                       problem.act == problem.weight && (!problem.bias || problem.out == problem.weight);
  return regular ? GemmPath::kCublasLt : own;
}

}  // namespace lfm2
