// What a generation hands out: finished samples, in the order in which they finish, and who takes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stage/support/checksum.h"

namespace lfm2 {

enum class FinishReason : uint8_t {
  kStop,   // an end-of-text token, which is the last of token_ids
  kLength  // as many tokens as asked for, or as the model has positions
};
std::string_view name(FinishReason reason);  // "stop", "length"

struct Completion {
  int64_t sample = 0;
  FinishReason reason = FinishReason::kLength;
  std::vector<int32_t> token_ids;    // what was generated, without the prompt
  std::vector<float> log_probs;      // [tokens]: of each of them
  std::vector<int32_t> top_ids;      // [tokens, top_k]
  std::vector<float> top_log_probs;  // [tokens, top_k]
};

class CompletionConsumer {
 public:
  virtual ~CompletionConsumer() = default;
  virtual void take(const Completion& completion) = 0;
};

// The sum of the XXH3-128 of all samples' tokens, each with its number as the seed: equal for equal texts, whatever the
// order in which they finished.
class CompletionHash : public CompletionConsumer {
 public:
  static HashSum of(const Completion& completion);
  void take(const Completion& completion) override;
  void add(const HashSum& completions) { sum_.add(completions); }  // that were handed out before
  std::string hex() const { return sum_.hex(); }
  int64_t count() const { return count_; }  // taken

 private:
  HashSum sum_;
  int64_t count_ = 0;
};

}  // namespace lfm2
