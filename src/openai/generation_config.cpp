#include "openai/generation_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json/json.h"
#include "openai/other_fields.h"
#include "openai/request_fields.h"

namespace lfm2 {

namespace {

// One id, or a list of them.
std::vector<int32_t> eos_tokens_of(FieldReader& fields) {
  constexpr const char* kKey = "eos_token_id";
  const OrderedJson* value = fields.find(kKey);
  std::vector<int32_t> ids;
  if (value == nullptr) return ids;
  for (const OrderedJson& id : value->is_array() ? *value : OrderedJson::array({*value})) {
    const std::optional<int64_t> token = whole_number(id);
    if (!token || *token < 0 || *token > INT32_MAX)
      refuse_field(fields.where(), kKey, id, fmt::format("an integer from 0 to {}", INT32_MAX));
    ids.push_back(static_cast<int32_t>(*token));
  }
  return ids;
}

// One text, or a list of them.
std::vector<std::string> stop_strings_of(FieldReader& fields) {
  constexpr const char* kKey = "stop_strings";
  const OrderedJson* value = fields.find(kKey);
  if (value == nullptr) return {};
  const OrderedJson list = value->is_string() ? OrderedJson::array({*value}) : *value;
  const auto is_stop = [](const OrderedJson& text) { return text.is_string() && text != ""; };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_stop))
    refuse_field(fields.where(), kKey, *value, "text, or a list of texts, none of them empty");
  return list.get<std::vector<std::string>>();
}

}  // namespace

SamplingOverrides parse_generation_config(std::string_view text, const std::string& what) {
  const OrderedJson json = parse_json(text, what);  // the limits of a model's files
  if (!json.is_object())
    throw Error(ExitCode::kData, fmt::format("{}: {}, expected an object", what, json_excerpt(json)));
  refuse_unsupported_config(json, what);
  const LineContext none;
  FieldReader fields(json, none, what);
  SamplingOverrides config;
  read_sampling(fields, config, true);
  config.max_new = fields.integer("max_new_tokens", 0, kMaxAsked);
  if (config.max_new == 0) config.max_new.reset();
  config.eos_tokens = eos_tokens_of(fields);
  config.stop = stop_strings_of(fields);
  if (fields.find("do_sample") != nullptr && !fields.flag("do_sample")) config.temperature = 0.0f;
  return config;
}

}  // namespace lfm2
