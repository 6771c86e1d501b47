// The operator target_log_probs: log-softmax over the vocabulary at one given token, and whether it is the top-1 token.
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/sampling.h"

namespace lfm2 {

void CpuOps::target_log_probs(const Tensor& logits, const Tensor& targets, const Tensor& log_probs,
                              const Tensor& is_greedy) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  expect(logits.dtype == DType::kF32 && targets.dtype == DType::kI32 && log_probs.dtype == DType::kF32 &&
             is_greedy.dtype == DType::kI32 && vocab > 0 && targets.numel() == rows && log_probs.numel() == rows &&
             is_greedy.numel() == rows,
         "target_log_probs: shapes");
  const double* sums = log_sums(logits);
  pool_.parallel_for(static_cast<size_t>(rows), [&](size_t row, size_t) {
    const float* logit = logits.as<const float>() + static_cast<int64_t>(row) * vocab;
    const int32_t target = targets.as<const int32_t>()[row];
    expect(target >= 0 && target < vocab, "target_log_probs: a token id outside the vocabulary");
    const uint32_t key = sampling_key(logit[target]);
    // Ties go to the lower id: an equal logit at a lower id is better than the target, at a higher id only a larger
    // one.
    const bool best =
        std::none_of(logit, logit + target, [key](float other) { return sampling_key(other) >= key; }) &&
        std::none_of(logit + target, logit + vocab, [key](float other) { return sampling_key(other) > key; });
    log_probs.as<float>()[row] = static_cast<float>(static_cast<double>(logit[target]) - sums[row]);
    is_greedy.as<int32_t>()[row] = best ? 1 : 0;
  });
}

}  // namespace lfm2
