// How texts are to be continued, as far as somebody says so: the model's generation_config.json, the command line, a
// line of input, the body of a request. Each of these goes before those that are named before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/words.h"
#include "kernels/sampling.h"

namespace lfm2 {

struct SamplingOverrides {
  std::optional<float> temperature = {}, top_p = {}, min_p = {};
  std::optional<float> repetition_penalty = {}, presence_penalty = {}, frequency_penalty = {};
  std::optional<int64_t> top_k = {};
  std::optional<int32_t> min_tokens = {};
  std::optional<uint64_t> seed = {};
  std::optional<int64_t> max_new = {};
  std::vector<int32_t> eos_tokens = {};  // these alone end a text; empty: nothing is said
  std::vector<std::string> stop = {};    // texts that end a text; empty: nothing is said
  bool operator==(const SamplingOverrides&) const = default;
  auto operator<=>(const SamplingOverrides&) const = default;
};

// The fields that set a member of the rule, each with that member.
inline constexpr std::tuple kRuleFields{
    std::pair{&SamplingOverrides::temperature, &SamplingRule::temperature},
    std::pair{&SamplingOverrides::top_k, &SamplingRule::top_k},
    std::pair{&SamplingOverrides::top_p, &SamplingRule::top_p},
    std::pair{&SamplingOverrides::seed, &SamplingRule::seed},
    std::pair{&SamplingOverrides::min_p, &SamplingRule::min_p},
    std::pair{&SamplingOverrides::repetition_penalty, &SamplingRule::repetition_penalty},
    std::pair{&SamplingOverrides::presence_penalty, &SamplingRule::presence_penalty},
    std::pair{&SamplingOverrides::frequency_penalty, &SamplingRule::frequency_penalty},
    std::pair{&SamplingOverrides::min_tokens, &SamplingRule::min_tokens}};

// See base/words.h.
void for_each_field(MaybeConst<SamplingOverrides> auto& overrides, const auto& each) {
  std::apply([&](const auto&... field) { (each(overrides.*field.first), ...); }, kRuleFields);
  each(overrides.max_new);
  each(overrides.eos_tokens);
  each(overrides.stop);
}

}  // namespace lfm2
