// The results of a generation: drawn tokens, completions in the order in which they end, and the interface of their
// consumers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/not_finite.h"
#include "base/words.h"

namespace lfm2 {

enum class FinishReason : uint8_t {
  kStop,    // the last of token_ids is an end-of-text token or completes a stop text
  kLength,  // reached the requested number of tokens, or the model's last position
  kError    // no next token or no result for the prompt: results are not finite, or a constraint reached a limit
};
constexpr std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kError:
      break;
  }
  return "error";
}
// The error message of kError for clients.
inline constexpr const char* kNotFiniteError = "the model's results are not finite (NaN or infinity)";

// The log-probabilities of tokens, and the top logprobs at their positions.
struct TokenLogProbs {
  std::vector<float> log_probs = {};      // [tokens]
  std::vector<int32_t> top_ids = {};      // [tokens, k]
  std::vector<float> top_log_probs = {};  // [tokens, k]
  bool operator==(const TokenLogProbs&) const = default;
};

void for_each_field(MaybeConst<TokenLogProbs> auto& tokens, const auto& each) {  // see base/words.h
  each(tokens.log_probs, tokens.top_ids, tokens.top_log_probs);
}

// A drawn token, as the last stage returns it.
struct DrawnToken {
  int32_t token = 0;
  float log_prob = 0;
  // Why the sequence ends with this token; empty: it continues. With kError the token is not part of the text.
  std::optional<FinishReason> ends = {};
  std::string error = {};             // with kError: the reason, unless it is kNotFiniteError
  std::vector<int32_t> top_ids = {};  // [`Request::num_top_logprobs`]
  std::vector<float> top_log_probs = {};
  // With the first token, if the request asks for them: see Request::prompt_log_probs and Request::hidden.
  TokenLogProbs prompt = {};
  std::vector<float> hidden = {};  // [hidden]
  int32_t drafts = 0;              // with the first token of a block: its number of drafts
  bool drafted =
      false;  // a draft was the same token: the next token of the step follows it, unless it ends the sequence
  std::vector<int32_t> proposed = {};  // with the last token of an entry: drafts that may follow, by the last stage
};

void for_each_field(MaybeConst<DrawnToken> auto& one, const auto& each) {
  each(one.token, one.log_prob, one.ends, one.error, one.top_ids, one.top_log_probs, one.prompt, one.hidden, one.drafts,
       one.drafted, one.proposed);
}

// Removes the tokens of the next entry, which has `drafts` drafts, from those of a step.
std::span<DrawnToken> pop_entry(std::span<DrawnToken>& left, int32_t drafts);

// Drafts that were made for a text, and those of them that became its tokens.
struct DraftCounts {
  int64_t made = 0, accepted = 0;
  void add(const DraftCounts& more) {
    made += more.made;
    accepted += more.accepted;
  }
  void add(const DrawnToken& token) { add(DraftCounts{token.drafts, token.drafted ? 1 : 0}); }
  bool operator==(const DraftCounts&) const = default;
};

struct Completion {
  int64_t sample = 0;
  int32_t choice = 0;  // which choice of the prompt
  int32_t prompt_tokens = 0;
  int32_t tag = 0;  // the request's: a ResponseForm
  FinishReason reason = FinishReason::kLength;
  std::vector<int32_t> token_ids;  // the generated tokens, without the prompt
  // If a stop text ended it: the number of bytes of its text before the stop text.
  std::optional<int64_t> text_bytes = {};
  std::vector<float> log_probs;          // [tokens]: the log-probability of each token
  std::vector<int32_t> top_ids;          // [tokens, top_k]
  std::vector<float> top_log_probs;      // [tokens, top_k]
  std::vector<int32_t> prompt_ids = {};  // if the answer repeats the prompt
  TokenLogProbs prompt = {};             // of all prompt tokens but the first, if the request asks for them
  std::vector<Completion> others = {};   // on the first choice: the other choices, in order
  // Why the sample has no tokens or, with kError, no further tokens.
  std::string error = {};
  DraftCounts drafts = {};
  bool operator==(const Completion&) const = default;
};

void for_each_field(MaybeConst<Completion> auto& one, const auto& each) {
  each(one.sample, one.choice, one.prompt_tokens, one.tag, one.reason, one.token_ids, one.text_bytes, one.log_probs,
       one.top_ids, one.top_log_probs, one.prompt_ids, one.prompt, one.others, one.error, one.drafts.made,
       one.drafts.accepted);
}

class CompletionConsumer {
 public:
  virtual ~CompletionConsumer() = default;
  virtual void consume(const Completion& completion) = 0;
};

// The sum of the XXH3-128 hashes of all samples' tokens, each seeded with the sample's number. Equal completions have
// equal sums, in any order.
class CompletionHash : public CompletionConsumer {
 public:
  static HashSum of(const Completion& completion);
  void consume(const Completion& completion) override;
  void add(const HashSum& completions) { sum_.add(completions); }  // adds an earlier run's hash
  std::string hex() const { return sum_.hex(); }
  int64_t count() const { return count_; }                     // number of consumed samples
  const NotFinite& not_finite() const { return not_finite_; }  // those of their choices that ended with kError

 private:
  HashSum sum_;
  NotFinite not_finite_;
  int64_t count_ = 0;
};

}  // namespace lfm2
