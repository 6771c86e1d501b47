// The operator top_log_probs: log-softmax over the vocabulary, and its largest entries.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/cpu_ops.h"

namespace lfm2 {

// With fewer rows than threads, the threads share each row; its terms are added in the same order. The sum is NaN if a
// logit is NaN or +infinity, or if all are -infinity: each of these makes a term of exp(x - largest) NaN.
const double* CpuOps::log_sums(const Tensor& logits) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1), pieces = vocab_pieces(vocab);
  const auto* values = logits.as<const float>();
  auto* sums = log_sums_.reserve<double>(static_cast<size_t>(rows * (1 + pieces)));
  if (rows >= static_cast<int64_t>(pool_.threads())) {
    pool_.parallel_for(static_cast<size_t>(rows), [&](size_t row, size_t) {
      const float* logit = values + static_cast<int64_t>(row) * vocab;
      const auto largest = static_cast<double>(*std::max_element(logit, logit + vocab));
      double sum = 0;
      for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logit[i]) - largest);
      sums[row] = largest + std::log(sum);
    });
    return sums;
  }
  double* largest = sums + rows;  // [rows, pieces]
  auto* terms = scratch_.reserve<double>(static_cast<size_t>(rows * vocab));
  const auto largest_of = [&](int64_t row) {
    return *std::max_element(largest + row * pieces, largest + (row + 1) * pieces);
  };
  for_each_vocab_piece(rows, vocab, [&](int64_t row, int64_t first, int64_t end) {
    const float* logit = values + row * vocab;
    largest[row * pieces + first / kVocabPiece] = static_cast<double>(*std::max_element(logit + first, logit + end));
  });
  for_each_vocab_piece(rows, vocab, [&](int64_t row, int64_t first, int64_t end) {
    const double row_largest = largest_of(row);
    for (int64_t i = row * vocab + first; i < row * vocab + end; ++i)
      terms[i] = std::exp(static_cast<double>(values[i]) - row_largest);
  });
  pool_.parallel_for(static_cast<size_t>(rows), [&](size_t item, size_t) {
    const auto row = static_cast<int64_t>(item);
    sums[row] = largest_of(row) + std::log(std::accumulate(terms + row * vocab, terms + (row + 1) * vocab, 0.0));
  });
  return sums;
}

void CpuOps::top_log_probs(const Tensor& logits, const Tensor& ids, const Tensor& log_probs) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1), k = ids.dim(1);
  expect(logits.dtype == DType::kF32 && ids.dtype == DType::kI32 && log_probs.dtype == DType::kF32 && vocab > 0 &&
             k <= vocab && ids.dim(0) == rows && ids.dims == log_probs.dims,
         "top_log_probs: shapes");
  const double* sums = log_sums(logits);
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

    for (int64_t j = 0; j < k; ++j) {
      ids.as<int32_t>()[row * k + j] = order[j];
      log_probs.as<float>()[row * k + j] = static_cast<float>(static_cast<double>(logit[order[j]]) - sums[row]);
    }
  });
}

}  // namespace lfm2
