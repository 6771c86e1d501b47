// The operator top_log_probs: log-softmax over the vocabulary, and its largest entries.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/cpu_ops.h"

namespace lfm2 {

double CpuOps::log_sum(const float* logits, int64_t vocab) {
  const auto largest = static_cast<double>(*std::max_element(logits, logits + vocab));
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
  return largest + std::log(sum);
}

void CpuOps::top_log_probs(const Tensor& logits, const Tensor& ids, const Tensor& log_probs) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1), k = ids.dim(1);
  expect(logits.dtype == DType::kF32 && ids.dtype == DType::kI32 && log_probs.dtype == DType::kF32 && vocab > 0 &&
             k <= vocab && ids.dim(0) == rows && ids.dims == log_probs.dims,
         "top_log_probs: shapes");
  auto* scratch = scratch_.reserve<int32_t>(pool_.threads() * static_cast<size_t>(vocab));
  pool_.parallel_for(static_cast<size_t>(rows), [&](size_t item, size_t worker) {
    const auto row = static_cast<int64_t>(item);
    const float* logit = logits.as<const float>() + row * vocab;
    // A NaN sorts last. It makes all log-probabilities of its row NaN, as log_softmax does.
    const auto sortable = [](float x) { return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x; };
    const auto better = [&](int32_t a, int32_t b) {
      const float x = sortable(logit[a]), y = sortable(logit[b]);
      return x > y || (x == y && a < b);
    };
    int32_t* order = scratch + static_cast<int64_t>(worker) * vocab;
    std::iota(order, order + vocab, 0);
    std::partial_sort(order, order + k, order + vocab, better);

    const double row_log_sum = log_sum(logit, vocab);
    for (int64_t j = 0; j < k; ++j) {
      ids.as<int32_t>()[row * k + j] = order[j];
      log_probs.as<float>()[row * k + j] = static_cast<float>(static_cast<double>(logit[order[j]]) - row_log_sum);
    }
  });
}

}  // namespace lfm2
