// The adjustments of logits in plain words, over a list of the tokens that stand before: what the tests of the
// operators compare with. Penalties are those of transformers (repetition) and of OpenAI (presence, frequency).
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "kernels/sampling.h"

namespace lfm2::test {

struct Before {
  std::vector<int32_t> prompt, text;
};

inline std::vector<float> adjusted_row(std::vector<float> logits, const SamplingRule& rule, const Before& before,
                                       const std::vector<LogitEdit>& edits, int64_t place) {
  for (int32_t i = 0; i < rule.biases; ++i)
    logits[static_cast<size_t>(edits[static_cast<size_t>(i)].token)] += edits[static_cast<size_t>(i)].bias;
  std::map<int32_t, int> seen, drawn;
  for (const int32_t token : before.prompt) ++seen[token];
  for (const int32_t token : before.text) {
    ++seen[token];
    ++drawn[token];
  }
  for (const auto& [token, times] : seen) {
    float& score = logits[static_cast<size_t>(token)];
    score = score < 0 ? score * rule.repetition_penalty : score / rule.repetition_penalty;
  }
  for (const auto& [token, times] : drawn) {
    // The product is rounded once, with the sum.
    const double exact =
        static_cast<double>(logits[static_cast<size_t>(token)]) - static_cast<double>(rule.frequency_penalty) * times;
    logits[static_cast<size_t>(token)] = static_cast<float>(exact) - rule.presence_penalty;
  }
  if (place < rule.min_tokens)
    for (int32_t i = rule.biases; i < rule.biases + rule.banned; ++i)
      logits[static_cast<size_t>(edits[static_cast<size_t>(i)].token)] = -HUGE_VALF;
  return logits;
}

}  // namespace lfm2::test
