#include "stage/generation/sample_requests.h"

#include "base/split_mix.h"
#include "openai/answer_form.h"

namespace lfm2 {

void apply(const SamplingOverrides& overrides, Request& request) {
  const auto set = [](auto& value, const auto& by) { value = by.value_or(value); };
  std::apply([&](const auto&... field) { (set(request.rule.*field.second, overrides.*field.first), ...); },
             kRuleFields);
  set(request.max_new, overrides.max_new);
  if (!overrides.eos_tokens.empty()) request.eos_tokens = overrides.eos_tokens;
  if (!overrides.stop.empty()) request.stop = overrides.stop;
}

Request request_by_rules(const RequestDefaults& defaults, const SampleRules& rules, int64_t sample) {
  const bool of_ids = rules.form == LineForm::kIds || rules.form == LineForm::kText;
  Request request = of_ids ? defaults.of_ids : defaults.of_text;
  request.sample = static_cast<int32_t>(sample);
  request.draw = rules.form == LineForm::kIds && !rules.sampling.seed ? request.sample : 0;
  const bool batch = is_batch_form(rules.form);
  const AnswerForm form{rules.form, rules.log_probs || batch ? rules.log_probs : defaults.log_probs, rules.echo};
  request.tag = form.to_word();
  request.echo = rules.echo;
  request.prompt_log_probs = rules.echo && form.log_probs.has_value();
  request.choices = rules.choices;
  if (rules.ignore_eos) request.eos_tokens.clear();
  apply(rules.sampling, request);
  for (const auto& [token, bias] : rules.logit_bias) request.logit_bias.push_back({token, bias});
  request.eos_tokens.insert(request.eos_tokens.end(), rules.stop_token_ids.begin(), rules.stop_token_ids.end());
  if (rules.sampling.max_new == 0) ask_of_prompt_alone(request);
  return request;
}

uint64_t seed_of_choice(uint64_t seed, int32_t choice) {
  return choice == 0 ? seed : split_mix(seed, static_cast<uint64_t>(choice));
}

SampleRequests::SampleRequests(const Samples& samples, SampleRange range, RequestDefaults defaults,
                               int64_t max_positions)
    : samples_(samples), range_(range), defaults_(std::move(defaults)), max_positions_(max_positions) {
  for (int64_t i = 0; i < range.count; ++i)
    if (samples.offsets.length(range.first + i) > 0)
      waiting_ += samples.rules.choices(samples.numbers[range.first + i]);
}

std::optional<Request> SampleRequests::next() {
  if (waiting_ == 0) return {};
  while (samples_.offsets.length(range_.first + given_) == 0) ++given_;
  --waiting_;
  const int64_t sample = range_.first + given_, length = samples_.offsets.length(sample);
  const int64_t number = samples_.numbers[sample];
  const auto prompt = samples_.tokens(samples_.offsets[sample], length);
  Request request = request_by_rules(defaults_, samples_.rules[number], number);
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_new = max_new_tokens(length, request.max_new, max_positions_);
  request.choice = choice_;
  request.rule.seed = seed_of_choice(request.rule.seed, choice_);
  if (choice_ > 0) {
    request.first = request.sample;
    request.sample = extra_--;
  }
  if (++choice_ < request.choices) return request;
  choice_ = 0;
  ++given_;
  return request;
}

}  // namespace lfm2
