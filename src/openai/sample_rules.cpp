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

std::vector<int32_t> RuleTable::to_words(int64_t first, int64_t count) const {
  const auto part = [&](const auto& list) {
    if (list.empty()) return list;
    const auto begin = list.begin() + (first - first_);
    return std::remove_cvref_t<decltype(list)>(begin, begin + count);
  };
  std::vector<int32_t> words;
  WordWriter writer(words);
  writer.add(first);
  writer.add(count);
  writer.add(distinct_);
  writer.add(part(of_sample_));
  writer.add(part(seeds_));
  return words;
}

RuleTable RuleTable::from_words(std::span<const int32_t> words) {
  RuleTable table;
  WordReader reader(words);
  reader.read(table.first_);
  reader.read(table.samples_);
  reader.read(table.distinct_);
  reader.read(table.of_sample_);
  reader.read(table.seeds_);
  return table;
}

}  // namespace lfm2
