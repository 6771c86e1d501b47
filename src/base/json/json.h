// Strict JSON for untrusted files. All limits on JSON input are set here, and all numbers in JSON output are formatted
// here.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

// json.cpp instantiates these templates once, because they are slow to compile.
extern template class nlohmann::basic_json<>;
extern template class nlohmann::ordered_map<std::string, nlohmann::ordered_json>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace lfm2 {

// Parses one complete JSON text. Error(kData) for duplicate keys, more than 16 levels and invalid UTF-8; `what` names
// the file.
Json parse_json(std::string_view text, const std::string& what);

// The same for a conversation with its tools and their schemas: objects keep the order of their keys, and more levels
// are allowed. Integers of more than 64 bits would lose digits. They are refused or, with kDigits, kept as a binary
// value that holds their digits. JSON text has no binary values, so a template can write these digits unchanged.
inline constexpr int kMaxConversationDepth = 100;
enum class LargeIntegers { kRefused, kDigits };
enum class RepeatedKeys { kRefused, kLastCounts };  // kLastCounts: in the place of the first
OrderedJson parse_ordered_json(std::string_view text, const std::string& what,
                               LargeIntegers large = LargeIntegers::kRefused,
                               RepeatedKeys repeated = RepeatedKeys::kRefused);

// The value as JSON on one line, for messages; cut off between characters after 80 bytes.
std::string json_excerpt(const Json& value);
std::string json_excerpt(const OrderedJson& value);

// Expects a non-negative integer of at most `limit`. Error(kData) naming `what` and `key` otherwise.
uint64_t json_unsigned(const Json& value, uint64_t limit, const std::string& what, std::string_view key);

// The JSON text of a value that contains names of files or hosts. Names may hold any bytes, but JSON is UTF-8, and
// nlohmann's dump() throws on invalid bytes. Here U+FFFD replaces them.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const OrderedJson& value, int indent = -1);
// The JSON text on one line. Values made by LargeIntegers::kDigits are written as numbers; json_text() would write them
// as bytes.
std::string json_text_with_digits(const OrderedJson& value);

// Appends numbers separated by commas. Each is the shortest text that parses to the same number. Infinities and NaN
// become null, because JSON has neither.
template <class T>
void append_values(std::string& text, std::span<const T> values) {
  bool first = true;
  for (const T value : values) {
    if (!first) text += ',';
    first = false;
    if (value - value == T{})
      fmt::format_to(std::back_inserter(text), "{}", value);
    else
      text += "null";
  }
}

}  // namespace lfm2
