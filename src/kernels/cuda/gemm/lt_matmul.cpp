// The products by cuBLASLt. It works on column-major matrices, so our row-major out = a wᵀ is its outᵀ [n, m] = op(wᵀ)
// a, with w transposed.
#include "kernels/cuda/gemm/lt_matmul.h"

#include <array>

#include "kernels/cuda/common/cuda_check.h"

namespace lfm2 {

namespace {

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF32:
    case DType::kI32:
    case DType::kF8:
      break;
  }
  return CUDA_R_32F;
}

// The pedantic type keeps true fp32, whatever NVIDIA_TF32_OVERRIDE or a later version says.
cublasComputeType_t compute_type(DType act) {
  return act == DType::kF32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
}

struct Layouts {
  Layouts(const GemmProblem& problem, int64_t m) {
    const auto n = static_cast<uint64_t>(problem.n), k = static_cast<uint64_t>(problem.k),
               rows = static_cast<uint64_t>(m);
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&w, data_type(problem.weight), k, n, problem.k));
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&a, data_type(problem.act), k, rows, problem.k));
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&out, data_type(problem.out), n, rows, problem.n));
  }
  cublasLtMatrixLayoutOpaque_t w, a, out;
};

class Preference {
 public:
  Preference() {
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference_));
    const uint64_t workspace = LtMatmul::kWorkspaceBytes;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_reduction);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  }
  ~Preference() { static_cast<void>(cublasLtMatmulPreferenceDestroy(preference_)); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value));
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
};

template <class T>
T attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written));
  return value;
}

// The number of rows for which the fastest algorithm is chosen: that of a micro-batch, or, for the LM head, of a piece
// of rows.
int64_t typical_rows(int64_t n) { return n > 16384 ? 256 : 2048; }

}  // namespace

LtMatmul::LtMatmul(Buffer workspace) : workspace_(std::move(workspace)) {
  expect(workspace_.bytes() >= kWorkspaceBytes, "LtMatmul: workspace");
  CUBLAS_CHECK(cublasLtCreate(&handle_));
}
LtMatmul::~LtMatmul() { static_cast<void>(cublasLtDestroy(handle_)); }

std::optional<cublasLtMatmulAlgo_t> LtMatmul::choose_algorithm(const GemmProblem& problem, Plan& plan) const {
  constexpr int kCandidates = 32;
  const Preference preference;
  Layouts typical(problem, typical_rows(problem.n));
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results;
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &plan.operation, &typical.w, &typical.a, &typical.out, &typical.out,
                                     preference.get(), kCandidates, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  CUBLAS_CHECK(status);
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) continue;
    if (attribute_of<int32_t>(result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
    if (attribute_of<uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) != CUBLASLT_REDUCTION_SCHEME_NONE)
      continue;
    bool takes_all = true;
    for (const int64_t rows : {1, 2, 7, 16, 100, 513, 4096, 131072}) {
      Layouts layouts(problem, rows);
      cublasLtMatmulHeuristicResult_t answer{};
      takes_all = takes_all &&
                  cublasLtMatmulAlgoCheck(handle_, &plan.operation, &layouts.w, &layouts.a, &layouts.out, &layouts.out,
                                          &result.algo, &answer) == CUBLAS_STATUS_SUCCESS &&
                  answer.workspaceSize <= kWorkspaceBytes;
    }
    if (takes_all) return result.algo;
  }
  return std::nullopt;
}

LtMatmul::Plan& LtMatmul::plan_for(const GemmProblem& problem) {
  const Key key{problem.n, problem.k, problem.act, problem.out, problem.bias};
  if (const auto at = plans_.find(key); at != plans_.end()) return at->second;
  Plan plan;
  CUBLAS_CHECK(cublasLtMatmulDescInit(&plan.operation, compute_type(problem.act), CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(&plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
  if (problem.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(&plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  }
  plan.algorithm = choose_algorithm(problem, plan);
  return plans_.emplace(key, plan).first->second;
}

bool LtMatmul::multiply(cudaStream_t stream, const GemmArgs& args, const GemmProblem& problem) {
  Plan& plan = plan_for(problem);
  if (!plan.algorithm) return false;
  if (problem.bias)
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args.bias.data,
                                                sizeof args.bias.data));
  Layouts layouts(problem, args.m);
  const float one = 1.0f, old = args.epilogue == Epilogue::kAdd ? 1.0f : 0.0f;
  CUBLAS_CHECK(cublasLtMatmul(handle_, &plan.operation, &one, args.w.data, &layouts.w, args.a, &layouts.a, &old,
                              args.out, &layouts.out, args.out, &layouts.out, &*plan.algorithm, workspace_.data(),
                              workspace_.bytes(), stream));
  return true;
}

}  // namespace lfm2
