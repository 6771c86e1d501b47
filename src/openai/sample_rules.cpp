#include "openai/sample_rules.h"

#include "base/split_mix.h"

namespace lfm2 {

void apply(const SamplingOverrides& overrides, Request& request) {
  const auto set = [](auto& value, const auto& by) { value = by.value_or(value); };
  for_each_sampling_field([&](const auto& field) { set(request.rule.*field.rule, overrides.*field.said); });
  set(request.max_new, overrides.max_new);
  if (!overrides.eos_tokens.empty()) request.eos_tokens = overrides.eos_tokens;
  if (!overrides.stop.empty()) request.stop = overrides.stop;
}

Request request_by_rules(const RequestDefaults& defaults, const SampleRules& rules, int64_t sample) {
  const bool of_ids = rules.form == LineForm::kIds || rules.form == LineForm::kText;
  Request request = of_ids ? defaults.of_ids : defaults.of_text;
  request.sample = static_cast<int32_t>(sample);
  request.rng_stream = rules.form == LineForm::kIds && !rules.sampling.seed ? request.sample : 0;
  const bool batch = is_batch_form(rules.form);
  const ResponseForm form{rules.form, rules.log_probs || batch ? rules.log_probs : defaults.log_probs, rules.echo,
                          rules.message};
  request.tag = form.to_word();
  request.echo = rules.echo;
  request.prompt_log_probs = rules.echo && form.log_probs.has_value();
  request.choices = rules.choices;
  if (rules.ignore_eos) request.eos_tokens.clear();
  apply(rules.sampling, request);
  for (const auto& [token, bias] : rules.logit_bias) request.logit_bias.push_back({token, bias});
  request.constraint = rules.constraint;
  request.draft = rules.draft;
  request.eos_tokens.insert(request.eos_tokens.end(), rules.stop_token_ids.begin(), rules.stop_token_ids.end());
  if (rules.sampling.max_new == 0) make_prefill_only(request);
  return request;
}

uint64_t seed_of_choice(uint64_t seed, int32_t choice) {
  return choice == 0 ? seed : split_mix(seed, static_cast<uint64_t>(choice));
}

}  // namespace lfm2
