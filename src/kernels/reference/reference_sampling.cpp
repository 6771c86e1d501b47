// Log-probabilities, adjusted logits and draws, as kernels/sampling.h defines them, by sorting whole rows.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "kernels/reference/reference_ops.h"

namespace lfm2::reference {
namespace {

size_t index_of(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

std::vector<double> log_softmax(const Tensor& logits) {
  const int64_t vocab = logits.dim(1);
  std::vector<double> out = elements(logits);
  for (int64_t row = 0; row < logits.dim(0); ++row) {
    double* x = out.data() + row * vocab;
    const double largest = *std::max_element(x, x + vocab);
    double sum = 0;  // NaN if the row has no distribution, as infinity - infinity is
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - largest);
    for (int64_t i = 0; i < vocab; ++i) x[i] -= largest + std::log(sum);
  }
  return out;
}

std::vector<int32_t> descending(const float* logits, int64_t vocab) {
  std::vector<int32_t> order(index_of(vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t id) { return std::isnan(logits[id]) ? -HUGE_VALF : logits[id]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  return order;
}

std::vector<double> count_tokens(const Before& before, int64_t vocab) {
  std::vector<double> counts(index_of(vocab), 0);
  for (const int32_t id : before.prompt) counts[index_of(id)] = kInPrompt;
  for (const int32_t id : before.text) counts[index_of(id)] += kInText;
  return counts;
}

std::vector<float> adjust_logits(std::vector<float> logits, const SamplingRule& rule, const Before& before,
                                 const std::vector<LogitEdit>& edits, int64_t place) {
  for (int64_t i = 0; i < rule.biases; ++i) logits[index_of(edits[index_of(i)].token)] += edits[index_of(i)].bias;
  std::map<int32_t, int> seen, drawn;
  for (const int32_t token : before.prompt) ++seen[token];
  for (const int32_t token : before.text) ++seen[token], ++drawn[token];
  for (const auto& [token, times] : seen) {
    float& score = logits[index_of(token)];
    score = score < 0 ? score * rule.repetition_penalty : score / rule.repetition_penalty;
  }
  for (const auto& [token, times] : drawn) {
    // The product is rounded once, with the sum.
    const double exact =
        static_cast<double>(logits[index_of(token)]) - static_cast<double>(rule.frequency_penalty) * times;
    logits[index_of(token)] = static_cast<float>(exact) - rule.presence_penalty;
  }
  if (place < rule.min_tokens)
    for (int64_t i = rule.biases; i < rule.biases + rule.banned; ++i)
      logits[index_of(edits[index_of(i)].token)] = -HUGE_VALF;
  return logits;
}

int32_t sample(const float* logits, int64_t vocab, const SamplingRule& rule, int32_t sample, int32_t place) {
  std::vector<int32_t> order = descending(logits, vocab);
  if (rule.temperature == 0) return order[0];
  const auto value = [&](int32_t id) { return sampling_logit(sampling_key(logits[id])); };
  if (rule.top_k > 0 && rule.top_k < vocab) order.resize(index_of(rule.top_k));
  std::vector<uint64_t> masses(index_of(vocab));
  uint64_t total = 0;
  for (const int32_t id : order)
    total += masses[index_of(id)] = mass_of(value(id), value(order[0]), 1.0f / rule.temperature);
  const uint64_t enough = nucleus_mass(rule.top_p, total);
  std::vector<int32_t> kept;
  uint64_t before = 0;
  for (const int32_t id : order) {
    if (before < enough && masses[index_of(id)] >= least_mass(rule.min_p)) kept.push_back(id);
    before += masses[index_of(id)];
  }
  std::sort(kept.begin(), kept.end());
  total = 0;
  for (const int32_t id : kept) total += masses[index_of(id)];
  uint64_t target = draw_below(total, rule.seed, sample, place);
  for (const int32_t id : kept) {
    if (target < masses[index_of(id)]) return id;
    target -= masses[index_of(id)];
  }
  return -1;
}

}  // namespace lfm2::reference
