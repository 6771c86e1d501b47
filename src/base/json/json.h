// Strict JSON for untrusted files: the one place for the limits of all JSON that the project reads, and for the numbers
// in the JSON lines that it writes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

// json.cpp compiles what no caller inlines, once.
extern template class nlohmann::basic_json<>;
extern template class nlohmann::ordered_map<std::string, nlohmann::ordered_json>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace lfm2 {

// Parses one complete JSON text. Error(kData) for duplicate keys, more than 16 levels and invalid UTF-8; `what` names
// the file.
Json parse_json(std::string_view text, const std::string& what);

// The same for text from a conversation, with its tools and their schemas: objects keep the order of their keys, and
// there may be more levels. Integers of more than 64 bits would lose digits. They are refused, or become a binary value
// of their digits, which JSON text cannot contain otherwise: templates write the digits unchanged.
inline constexpr int kMaxConversationDepth = 100;
enum class LargeIntegers { kRefused, kDigits };
OrderedJson parse_ordered_json(std::string_view text, const std::string& what,
                               LargeIntegers large = LargeIntegers::kRefused);

// The value as JSON on one line, for messages; cut off between characters after 80 bytes.
std::string json_excerpt(const Json& value);
std::string json_excerpt(const OrderedJson& value);

// Expects a non-negative integer of at most `limit`. Error(kData) naming `what` and `key` otherwise.
uint64_t json_unsigned(const Json& value, uint64_t limit, const std::string& what, std::string_view key);

// The JSON text of a value with names of files or hosts in it. Names may hold any bytes, but JSON is UTF-8: U+FFFD
// replaces invalid bytes, where nlohmann's dump() would throw. Compiled once, as is the parser: both are large.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const OrderedJson& value, int indent = -1);
// On one line, with the digits of LargeIntegers::kDigits as numbers, which json_text() would write as bytes.
std::string json_text_with_digits(const OrderedJson& value);

// Appends numbers with commas between, each as the shortest text that reads back as the same number. JSON has no
// infinities and no NaN: those become null.
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
