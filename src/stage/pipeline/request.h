// One request of a generation. The same type is used from the reader of a line or body to the last stage, so that no
// code copies fields one by one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/words.h"
#include "kernels/sampling.h"
#include "stage/model/hidden.h"

namespace lfm2 {

// How many tokens may follow a prompt: `asked`, but at most what fits into the model's positions.
constexpr int64_t max_new_tokens(int64_t prompt, int64_t asked, int64_t max_positions) {
  return std::min(asked, max_positions - prompt);
}

struct Request {
  int32_t sample = 0;  // the number of the sample: unique in a run
  // Several requests with the same prompt may be the choices of one completion, which ends when all have ended.
  // `choices`: their number; `choice`: the index of this one; `first`: the sample of choice 0, unless this is choice 0.
  int32_t choices = 1, choice = 0, first = 0;
  int32_t rng_stream = 0;                  // a draw depends on the rule's seed, this number and the token's place
  int32_t tag = 0;                         // copied to the completion: a ResponseForm
  int32_t num_top_logprobs = 0;            // number of top logprobs returned with each drawn token
  std::vector<int32_t> prompt = {};        // at least one token
  int64_t max_new = 0;                     // limit of tokens after the prompt, at least 1; see max_new_tokens()
  SamplingRule rule = {};                  // without its numbers of edits: see rule_of()
  std::vector<int32_t> eos_tokens = {};    // each of these tokens ends the completion
  std::vector<std::string> stop = {};      // stop texts; none is empty
  std::vector<LogitEdit> logit_bias = {};  // at most one for each token
  std::string constraint = {};             // empty, or as grammar::compile_constraint() reads it.
  // Results for the prompt that return with the first token: the log-probability of each prompt token but the first,
  // and a hidden state, of the last position (kLast) or the mean of all (kMean).
  bool prompt_log_probs = false;
  Hidden hidden = Hidden::kNone;
  bool echo = false;          // the completion repeats the prompt
  bool prefill_only = false;  // max_new is 1, and the completion omits the drawn token
  bool draft = true;          // whether drafts may be made for it, where the job makes any
  // Whether the prompt may begin with pages of the prefix cache. It may not if results need all of its positions.
  bool may_use_prefix() const { return !prompt_log_probs && hidden != Hidden::kMean; }
  bool operator==(const Request&) const = default;
};

// See base/words.h.
void for_each_field(MaybeConst<SamplingRule> auto& rule, const auto& each) {
  each(rule.temperature, rule.top_k, rule.top_p, rule.seed, rule.min_p, rule.repetition_penalty, rule.presence_penalty,
       rule.frequency_penalty, rule.min_tokens);
}

void for_each_field(MaybeConst<LogitEdit> auto& edit, const auto& each) { each(edit.token, edit.bias); }

void for_each_field(MaybeConst<Request> auto& request, const auto& each) {
  each(request.sample, request.choices, request.choice, request.first, request.rng_stream, request.tag,
       request.num_top_logprobs, request.prompt, request.max_new, request.rule, request.eos_tokens, request.stop,
       request.logit_bias, request.constraint, request.prompt_log_probs, request.hidden, request.echo,
       request.prefill_only, request.draft);
}

// The edits of a request's logits: its biases, then the bans of end-of-text tokens before min_tokens.
inline std::vector<LogitEdit> edits_of(const Request& request) {
  std::vector<LogitEdit> edits = request.logit_bias;
  if (request.rule.min_tokens > 0)
    for (const int32_t token : request.eos_tokens) edits.push_back({token, 0});
  return edits;
}

// The rule of a request, completed by the numbers of its edits.
inline SamplingRule rule_of(const Request& request) {
  SamplingRule rule = request.rule;
  rule.biases = static_cast<int32_t>(request.logit_bias.size());
  rule.banned = rule.min_tokens > 0 ? static_cast<int32_t>(request.eos_tokens.size()) : 0;
  rule.constrained = request.constraint.empty() ? 0 : 1;
  return rule;
}

// Makes it a request that computes only its prompt (max_tokens = 0).
inline void make_prefill_only(Request& request) {
  request.prefill_only = true;
  request.max_new = 1;
  request.rule = {};
  request.eos_tokens = {};
  request.stop = {};
  request.logit_bias = {};
  request.constraint = {};
}

}  // namespace lfm2
