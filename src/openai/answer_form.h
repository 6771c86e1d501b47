// What the answer to a sample looks like: known where its line is read, needed where its completion is written. It goes
// through the pipeline as one word of the request.
#pragma once

#include <cstdint>
#include <optional>

#include "openai/sample_rules.h"

namespace lfm2 {

struct AnswerForm {
  LineForm form = LineForm::kIds;
  std::optional<int32_t> log_probs = {};  // see SampleRules; at most 2^20
  bool echo = false;                      // the prompt stands before the answer

  int32_t to_word() const {
    return static_cast<int32_t>(form) | (log_probs ? *log_probs + 1 : 0) << 8 | (echo ? kEcho : 0);
  }
  static AnswerForm from_word(int32_t word) {
    AnswerForm answer{static_cast<LineForm>(word & 0xff)};
    answer.echo = (word & kEcho) != 0;
    if (const int32_t log_probs = (word & ~kEcho) >> 8; log_probs > 0) answer.log_probs = log_probs - 1;
    return answer;
  }

 private:
  static constexpr int32_t kEcho = 1 << 30;
};

}  // namespace lfm2
