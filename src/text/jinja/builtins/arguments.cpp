#include "text/jinja/builtins/arguments.h"

#include <algorithm>

#include "text/jinja/values/operators.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

std::vector<Value> bind(Heap& heap, std::string_view what, const Arguments& arguments,
                        std::initializer_list<std::string_view> parameters, size_t required) {
  std::vector<Value> values(parameters.size());
  if (arguments.positional.size() > values.size())
    heap.fail(fmt::format("{}: {} arguments, at most {}", what, arguments.positional.size(), values.size()));
  std::copy(arguments.positional.begin(), arguments.positional.end(), values.begin());
  for (const auto& [name, value] : arguments.keyword) {
    const auto* found = std::find_if(parameters.begin(), parameters.end(), [&](std::string_view parameter) {
      return parameter == name || (parameter.starts_with(kNotSupported) && parameter.substr(1) == name);
    });
    if (found == parameters.end()) heap.fail(fmt::format("{}: no argument is named '{}'", what, name));
    Value& place = values[static_cast<size_t>(found - parameters.begin())];
    if (!place.is_missing()) heap.fail(fmt::format("{}: argument '{}' is given twice", what, name));
    place = value;
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (const std::string_view name = parameters.begin()[i]; name.starts_with(kNotSupported) && !values[i].is_missing())
      heap.fail(unsupported(fmt::format("the argument '{}' of {}", name.substr(1), what)));
  for (size_t i = 0; i < required; ++i)
    if (values[i].is_missing()) heap.fail(fmt::format("{}: argument '{}' is missing", what, parameters.begin()[i]));
  return values;
}

std::string_view text_argument(Heap& heap, const Value& value, std::string_view what) {
  if (!value.is_text()) refuse(heap, value, fmt::format("{} is a {}, expected a str", what, type_name(value)));
  return value.as_text();
}

Integer integer_argument(Heap& heap, const Value& value, std::string_view what) {
  if (!value.is_integral()) refuse(heap, value, fmt::format("{} is a {}, expected an int", what, type_name(value)));
  return value.as_integer();
}

}  // namespace lfm2::jinja
