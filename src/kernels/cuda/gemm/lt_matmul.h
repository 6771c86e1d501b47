// Dense matrix products by cuBLASLt. Each (n, k, types) has one algorithm for every number of rows, so that the bits of
// a row do not depend on the rows beside it. Used by Products.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/launch.h"

namespace lfm2 {

class LtMatmul {
 public:
  // cuBLASLt's Hopper kernels count their tiles in 4 bytes of workspace. Partial sums over k would not fit in here.
  static constexpr size_t kWorkspaceBytes = 4096;

  explicit LtMatmul(Buffer workspace);
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  // Returns false if no algorithm of cuBLASLt adds k in one piece (no split-K) for every number of rows; that depends
  // on n, k and the types only. `problem` is one for which choose_dense returned kCublasLt.
  bool multiply(cudaStream_t stream, const GemmArgs& args, const GemmProblem& problem);

 private:
  struct Key {
    int64_t n, k;
    DType act, out;
    bool bias;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    cublasLtMatmulDescOpaque_t operation{};
    std::optional<cublasLtMatmulAlgo_t> algorithm;  // none if cuBLASLt has no such algorithm
  };

  Plan& plan_for(const GemmProblem& problem);
  std::optional<cublasLtMatmulAlgo_t> choose_algorithm(const GemmProblem& problem, Plan& plan) const;

  Buffer workspace_;  // used by one stream only
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace lfm2
