// The generation fields of samples, from input lines or bodies, and the requests that result from them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "openai/answer/message_form.h"
#include "openai/sampling_overrides.h"
#include "stage/pipeline/request.h"

namespace lfm2 {

// The form in which a sample was given. Defaults come from the options for kIds and kText, and also from the model's
// generation_config.json for the others.
enum class LineForm : uint8_t { kIds, kText, kPrompt, kMessages, kCompletion, kChatCompletion };
// Lines of OpenAI's batch form, which are answered in that form.
constexpr bool is_batch_form(LineForm form) {
  return form == LineForm::kCompletion || form == LineForm::kChatCompletion;
}

// The form of the answer to a sample. The first stage reads it from the line; the rank that writes the completion needs
// it. It goes through the pipeline as one word, Request::tag.
struct ResponseForm {
  LineForm form = LineForm::kIds;
  std::optional<int32_t> log_probs = {};  // see SampleRules; at most 2^20
  bool echo = false;                      // the answer begins with the prompt
  MessageForm message = {};               // of kChatCompletion

  int32_t to_word() const {
    return static_cast<int32_t>(form) | message.to_word() << 3 | (log_probs ? *log_probs + 1 : 0) << 8 |
           (echo ? kEcho : 0);
  }
  static ResponseForm from_word(int32_t word) {
    ResponseForm answer{static_cast<LineForm>(word & 7)};
    answer.message = MessageForm::from_word(word >> 3 & 31);
    answer.echo = (word & kEcho) != 0;
    if (const int32_t log_probs = (word & ~kEcho) >> 8; log_probs > 0) answer.log_probs = log_probs - 1;
    return answer;
  }

 private:
  static constexpr int32_t kEcho = 1 << 30;
};

// The fields of a line that override options; empty if the line does not set them.
struct SampleRules {
  LineForm form = LineForm::kIds;
  bool ignore_eos = false;
  bool echo = false;    // the answer begins with the prompt; max_new may be 0 then
  bool draft = true;    // see Request
  int32_t choices = 1;  // draws from the same prompt: "n"
  SamplingOverrides sampling = {};
  std::optional<int32_t> log_probs = {};     // top logprobs of each token; 0: only the token's own log-probability
  std::vector<int32_t> stop_token_ids = {};  // in addition to the end-of-text tokens
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // by token
  MessageForm message = {};                                // of kChatCompletion
  std::string constraint = {};                             // see Request
  bool operator==(const SampleRules&) const = default;
  auto operator<=>(const SampleRules&) const = default;
};

// What the requests of a job have in common, by the form of their lines.
struct RequestDefaults {
  Request of_ids;                         // kIds and kText: the options
  Request of_text;                        // all other forms: the options, and the model's generation_config.json
  std::optional<int32_t> log_probs = {};  // of lines that are not batch lines: see SampleRules
};

// `overrides` take precedence over the request's own sampling parameters.
void apply(const SamplingOverrides& overrides, Request& request);

// The request of a sample, without its prompt. The fields of its line override the defaults. Draws of a sample given as
// ids depend on its number in the job, unless its line has a seed; draws of all other samples depend only on their
// seeds.
Request request_by_rules(const RequestDefaults& defaults, const SampleRules& rules, int64_t sample);

// The seed of one of several choices of a prompt: the first choice has `seed` itself.
uint64_t seed_of_choice(uint64_t seed, int32_t choice);

// The rules of each sample of a job. Equal rules are stored once. Seeds need 16 bytes a sample, and rules that are not
// all equal 4 bytes a sample.
class RuleTable {
 public:
  void push_back(SampleRules rules) {
    const std::optional<uint64_t> seed = rules.sampling.seed;
    rules.sampling.seed.reset();
    const auto [found, is_new] = index_.try_emplace(rules, static_cast<uint32_t>(distinct_.size()));
    if (is_new) distinct_.push_back(std::move(rules));
    if (found->second != 0 && of_sample_.empty()) of_sample_.resize(samples_);
    if (!of_sample_.empty()) of_sample_.push_back(found->second);
    if (seed && seeds_.empty()) seeds_.resize(samples_);
    if (!seeds_.empty() || seed) seeds_.push_back(seed);
    ++samples_;
  }
  bool empty() const { return samples_ == 0; }  // no sample has rules
  SampleRules operator[](int64_t sample) const {
    if (empty()) return {};
    const auto at = static_cast<size_t>(sample);
    SampleRules rules = distinct_[of_sample_.empty() ? 0 : of_sample_[at]];
    if (!seeds_.empty()) rules.sampling.seed = seeds_[at];
    return rules;
  }
  // The number of choices of a sample.
  int32_t choices(int64_t sample) const {
    return empty() ? 1 : distinct_[of_sample_.empty() ? 0 : of_sample_[static_cast<size_t>(sample)]].choices;
  }
  const std::vector<SampleRules>& distinct() const { return distinct_; }  // without seeds

 private:
  size_t samples_ = 0;
  std::vector<SampleRules> distinct_;
  std::map<SampleRules, uint32_t> index_;
  std::vector<uint32_t> of_sample_;             // index of distinct_; empty while all are 0
  std::vector<std::optional<uint64_t>> seeds_;  // empty while none has one
};

}  // namespace lfm2
