#include "openai/generation_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json/json.h"

namespace lfm2 {

namespace {

class ConfigReader {
 public:
  ConfigReader(const Json& json, const std::string& what) : json_(json), what_(what) {}

  std::optional<double> number(const char* key, double least, double most) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most))
      refuse(key, *value, fmt::format("a number from {} to {}", least, most));
    return value->get<double>();
  }
  std::optional<int64_t> integer(const char* key, uint64_t most) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    return static_cast<int64_t>(json_unsigned(*value, most, what_, key));
  }
  std::vector<int32_t> ids(const char* key) const {
    const Json* value = find(key);
    std::vector<int32_t> ids;
    if (value == nullptr) return ids;
    const auto add = [&](const Json& id) {
      ids.push_back(static_cast<int32_t>(json_unsigned(id, INT32_MAX, what_, key)));
    };
    if (!value->is_array()) add(*value);
    if (value->is_array())
      for (const Json& id : *value) add(id);
    return ids;
  }
  // One text, or a list of them.
  std::vector<std::string> texts(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    const Json list = value->is_string() ? Json::array({*value}) : *value;
    const auto is_stop = [](const Json& text) {
      return text.is_string() && !text.get_ref<const std::string&>().empty();
    };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_stop))
      refuse(key, *value, "text, or a list of texts, none of them empty");
    return list.get<std::vector<std::string>>();
  }
  bool is_false(const char* key) const {
    const Json* value = find(key);
    if (value != nullptr && !value->is_boolean()) refuse(key, *value, "true or false");
    return value != nullptr && !value->get<bool>();
  }
  // Of what is not supported only the value that changes nothing.
  void expect_neutral(const char* key, double neutral) const {
    const Json* value = find(key);
    if (value != nullptr && !(value->is_number() && value->get<double>() == neutral))
      throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is {}, which is not supported: expected {}, or "
                                               "--generation-config none",
                                               what_, key, json_excerpt(*value), neutral));
  }

 private:
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void refuse(const char* key, const Json& found, const std::string& expected) const {
    throw Error(ExitCode::kData,
                fmt::format("{}: \"{}\" is {}, expected {}", what_, key, json_excerpt(found), expected));
  }

  const Json& json_;
  const std::string& what_;
};

}  // namespace

SamplingOverrides parse_generation_config(std::string_view text, const std::string& what) {
  const Json json = parse_json(text, what);
  if (!json.is_object())
    throw Error(ExitCode::kData, fmt::format("{}: {}, expected an object", what, json_excerpt(json)));
  const ConfigReader reader(json, what);
  for (const auto& [key, neutral] : {std::pair{"typical_p", 1.0}, {"no_repeat_ngram_size", 0.0}, {"num_beams", 1.0}})
    reader.expect_neutral(key, neutral);
  constexpr uint64_t kMaxCount = uint64_t{1} << 31;
  SamplingOverrides config;
  if (const auto value = reader.number("temperature", 0, 1e6)) config.temperature = static_cast<float>(*value);
  if (const auto value = reader.number("top_p", 0, 1)) config.top_p = static_cast<float>(*value);
  if (const auto value = reader.number("min_p", 0, 1)) config.min_p = static_cast<float>(*value);
  if (const auto value = reader.number("repetition_penalty", 0.01, 100))
    config.repetition_penalty = static_cast<float>(*value);
  config.top_k = reader.integer("top_k", kMaxCount);
  config.max_new = reader.integer("max_new_tokens", kMaxCount);
  if (config.max_new == 0) config.max_new.reset();
  if (const auto value = reader.integer("min_new_tokens", INT32_MAX)) config.min_tokens = static_cast<int32_t>(*value);
  config.eos_tokens = reader.ids("eos_token_id");
  config.stop = reader.texts("stop_strings");
  if (reader.is_false("do_sample")) config.temperature = 0.0f;
  return config;
}

}  // namespace lfm2
