// Strict JSON for files that strangers wrote: one place for the limits under all JSON that the project reads.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lfm2 {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Parses one complete JSON text. Refuses duplicate keys, more than 16 levels and invalid UTF-8 with Error(kData);
// `what` names the file.
Json parse_json(std::string_view text, const std::string& what);

// A non-negative integer of at most `limit`; Error(kData) naming `what` and `key` otherwise.
uint64_t json_unsigned(const Json& value, uint64_t limit, const std::string& what, std::string_view key);

}  // namespace lfm2
