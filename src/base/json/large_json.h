// JSON of strangers, which may take most of the memory that there is.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json/json.h"

namespace lfm2 {

// Makes the value null or empty, from the innermost outwards. nlohmann's destructor first copies what an array or
// object holds, and ends the process where there is no memory left for that; of what is empty it copies nothing.
void empty_json(OrderedJson& value) noexcept;

struct EmptyAndDelete {
  void operator()(OrderedJson* json) const noexcept;
};
using LargeJson = std::unique_ptr<OrderedJson, EmptyAndDelete>;  // never null

LargeJson parse_large_json(std::string_view text, const std::string& what,
                           LargeIntegers large = LargeIntegers::kDigits);

}  // namespace lfm2
