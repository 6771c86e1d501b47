// Sampling parameters as far as a source sets them. The sources in ascending precedence: the model's
// generation_config.json, the command line, a line of input or the body of a request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/sampling.h"

namespace lfm2 {

struct SamplingOverrides {
  std::optional<float> temperature = {}, top_p = {}, min_p = {};
  std::optional<float> repetition_penalty = {}, presence_penalty = {}, frequency_penalty = {};
  std::optional<int64_t> top_k = {};
  std::optional<int32_t> min_tokens = {};
  std::optional<uint64_t> seed = {};
  std::optional<int64_t> max_new = {};
  std::vector<int32_t> eos_tokens = {};  // the only tokens that end a text; empty: not set
  std::vector<std::string> stop = {};    // stop texts; empty: not set
  bool operator==(const SamplingOverrides&) const = default;
  auto operator<=>(const SamplingOverrides&) const = default;
};

// A sampling parameter: its names in lines and bodies and in generation_config.json (null: not read there), its member
// of SamplingOverrides, its member of SamplingRule, and the range of its values.
template <class T>
struct SamplingField {
  using Bound = std::conditional_t<std::is_same_v<T, float>, float, int64_t>;
  const char *key, *config_key;
  std::optional<T> SamplingOverrides::*said;
  T SamplingRule::*rule;
  Bound least, most;
};

constexpr int64_t kMaxAsked = int64_t{1} << 31;  // tokens
inline constexpr std::tuple kSamplingFields{
    SamplingField<float>{"temperature", "temperature", &SamplingOverrides::temperature, &SamplingRule::temperature, 0,
                         1e6f},
    SamplingField<float>{"top_p", "top_p", &SamplingOverrides::top_p, &SamplingRule::top_p, 0, 1},
    SamplingField<float>{"min_p", "min_p", &SamplingOverrides::min_p, &SamplingRule::min_p, 0, 1},
    SamplingField<int64_t>{"top_k", "top_k", &SamplingOverrides::top_k, &SamplingRule::top_k, -1, kMaxAsked},
    SamplingField<uint64_t>{"seed", nullptr, &SamplingOverrides::seed, &SamplingRule::seed, INT64_MIN, INT64_MAX},
    SamplingField<float>{"repetition_penalty", "repetition_penalty", &SamplingOverrides::repetition_penalty,
                         &SamplingRule::repetition_penalty, 0.01f, 100},
    SamplingField<float>{"presence_penalty", nullptr, &SamplingOverrides::presence_penalty,
                         &SamplingRule::presence_penalty, -2, 2},
    SamplingField<float>{"frequency_penalty", nullptr, &SamplingOverrides::frequency_penalty,
                         &SamplingRule::frequency_penalty, -2, 2},
    SamplingField<int32_t>{"min_tokens", "min_new_tokens", &SamplingOverrides::min_tokens, &SamplingRule::min_tokens, 0,
                           INT32_MAX}};

void for_each_sampling_field(const auto& each) {
  std::apply([&](const auto&... field) { (each(field), ...); }, kSamplingFields);
}
// The option of the command line that sets the field: "--top-k".
inline std::string option_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

}  // namespace lfm2
