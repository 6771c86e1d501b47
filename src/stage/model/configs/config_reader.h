// The values of a config.json, each of which is checked as it is read. Shared by the readers of each model_type.
#pragma once

#include <limits>

#include "base/json/json.h"
#include "stage/model/model_config.h"

namespace lfm2 {

// Limits far above any model of the family. They keep sizes within 64 bits, and refuse absurd files by name.
inline constexpr uint64_t kMaxDimension = uint64_t{1} << 24;
inline constexpr uint64_t kMaxLayers = 4096, kMaxConvLength = 1024;

class ConfigReader {
 public:
  ConfigReader(const Json& json, const std::string& what) : json_(json), what_(what) {}

  // The value of `key`, or a null pointer if there is no such key. A JSON null is returned as a value, which most keys
  // refuse, as transformers does.
  const Json* find(std::string_view key) const {
    const auto at = json_.find(key);
    return at == json_.end() ? nullptr : &*at;
  }
  // For keys where a JSON null means the same as no key.
  const Json* find_unless_null(std::string_view key) const {
    const Json* value = find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  int64_t integer(std::string_view key, uint64_t limit = kMaxDimension) const {
    const Json* value = find(key);
    if (value == nullptr) fail(fmt::format("\"{}\" is missing", key));
    const uint64_t number = json_unsigned(*value, limit, what_, key);
    if (number == 0) fail(fmt::format("\"{}\" is 0, expected at least 1", key));
    return static_cast<int64_t>(number);
  }
  int64_t integer_or(std::string_view key, int64_t otherwise, uint64_t limit = kMaxDimension) const {
    return find(key) == nullptr ? otherwise : integer(key, limit);
  }
  bool boolean(std::string_view key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(fmt::format("\"{}\" is {}, expected true or false", key, json_excerpt(*value)));
    return value->get<bool>();
  }
  double real(const Json& value, std::string_view key) const {
    if (!value.is_number()) fail(fmt::format("\"{}\" is {}, expected a number", key, json_excerpt(value)));
    const double number = value.get<double>();
    const bool fits = number <= double{std::numeric_limits<float>::max()} && static_cast<float>(number) > 0;
    if (!fits) fail(fmt::format("\"{}\" is {}, expected a positive number that fp32 holds", key, number));
    return number;
  }
  double real(std::string_view key, double otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : real(*value, key);
  }
  const std::string& what() const { return what_; }
  [[noreturn]] void fail(const std::string& message) const { throw Error(ExitCode::kData, what_ + ": " + message); }

 private:
  const Json& json_;
  const std::string& what_;
};

// Reads what Lfm3Config has besides the keys of all classes (lfm3_config.cpp). The layers and the hidden size are read.
void read_lfm3(const ConfigReader& reader, ModelConfig& config);

}  // namespace lfm2
