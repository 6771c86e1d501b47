// Frees JSON of untrusted size, which may have filled most of the memory.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json/json.h"

namespace lfm2 {

// Empties the value from the innermost values outwards. nlohmann's destructor copies the content of an array or object
// before it frees it, and the process dies if there is no memory for the copy. Empty values need no copy.
void empty_json(OrderedJson& value) noexcept;

struct EmptyAndDelete {
  void operator()(OrderedJson* json) const noexcept;
};
using LargeJson = std::unique_ptr<OrderedJson, EmptyAndDelete>;  // never null

LargeJson parse_large_json(std::string_view text, const std::string& what, LargeIntegers large = LargeIntegers::kDigits,
                           RepeatedKeys repeated = RepeatedKeys::kRefused);

}  // namespace lfm2
