// The rules.
#include "kernels/cuda/gemm_plan.h"

namespace lfm2 {

namespace {
constexpr int64_t kVector = 8;  // elements: rows start on 16 bytes in every type
}

bool gemm_supported(const GemmProblem& problem) {
  if (problem.act == DType::kI32 || problem.weight == DType::kI32) return false;
  if (problem.out != problem.act && problem.out != DType::kF32) return false;
  return problem.act == DType::kF32 || problem.act == problem.weight;
}

GemmPath choose_grouped(const GemmProblem& problem) {
  if (problem.act != DType::kF32) return GemmPath::kMma;
  const bool planes = problem.weight == DType::kBf16 && problem.aligned && problem.k > 0 && problem.k % kVector == 0;
  return planes ? GemmPath::kPlanes : GemmPath::kSimt;
}

GemmPath choose_dense(const GemmProblem& problem) {
  // cuBLASLt's Hopper kernels round a 16-bit product before they add the old value to it: two roundings.
  const bool rounds_twice = problem.epilogue == Epilogue::kAdd && problem.out != DType::kF32;
  const bool regular = problem.aligned && !rounds_twice && problem.n > 0 && problem.k > 0 && problem.n % kVector == 0 &&
                       problem.k % kVector == 0 && problem.act == problem.weight &&
                       (!problem.bias || problem.out == problem.weight);
  return regular ? GemmPath::kCublasLt : choose_grouped(problem);
}

}  // namespace lfm2
