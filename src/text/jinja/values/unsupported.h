// What Jinja and Python have and published chat templates do not use. It is refused by its name, never computed in
// another way.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lfm2::jinja {

// Whose names are looked up. What a name is not even there for Jinja and Python do not know either.
enum class Naming : uint8_t {
  kFilter,
  kTest,
  kName,
  kTag,
  kTextMethod,
  kListMethod,
  kDictMethod,
  kLoopAttribute,
  kCallAttribute,  // of macros and generators
  kOtherAttribute  // of numbers, ranges and views
};
bool is_unsupported(Naming naming, std::string_view name);

// The message for such a name, and for any other construct: `what` names it.
std::string unsupported(Naming naming, std::string_view name);
std::string unsupported(std::string_view what);
// The message for a name that was not found: unsupported, or nobody's.
std::string unknown(Naming naming, std::string_view name);

}  // namespace lfm2::jinja
