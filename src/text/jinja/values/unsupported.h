// Names of Jinja and Python that published chat templates do not use. The interpreter refuses them by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lfm2::jinja {

// The kind of name that is looked up. A name that is in no table is also unknown to Jinja and Python.
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

// The message for an unsupported name, and for any other unsupported construct, which `what` names.
std::string unsupported(Naming naming, std::string_view name);
std::string unsupported(std::string_view what);
// The message for a name that was not found: unsupported, or unknown even to Jinja and Python.
std::string unknown(Naming naming, std::string_view name);

}  // namespace lfm2::jinja
