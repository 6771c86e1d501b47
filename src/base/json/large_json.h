// JSON of strangers, which may take most of the memory that there is.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json/json.h"

namespace lfm2 {

// Makes the value null or empty, from the innermost value outwards. nlohmann's destructor first copies the content of
// an array or object, and ends the process if there is no memory left for that. It copies nothing of an empty one.
void empty_json(OrderedJson& value) noexcept;

struct EmptyAndDelete {
  void operator()(OrderedJson* json) const noexcept;
};
using LargeJson = std::unique_ptr<OrderedJson, EmptyAndDelete>;  // never null

LargeJson parse_large_json(std::string_view text, const std::string& what,
                           LargeIntegers large = LargeIntegers::kDigits);

}  // namespace lfm2
