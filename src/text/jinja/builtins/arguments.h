// The arguments of a call, and their matching with the parameters of a built-in function, filter, test or method.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/values/heap.h"
#include "text/jinja/values/value.h"

namespace lfm2::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> keyword;
};

// Begins the name of a parameter that Python has and this interpreter lacks: an argument for it is refused by name.
inline constexpr char kNotSupported = '!';
// One value for each of the parameters, missing where none is given. Error for arguments that match no parameter, twice
// the same, and fewer than `required`. `what` names the function.
std::vector<Value> bind(Heap& heap, std::string_view what, const Arguments& arguments,
                        std::initializer_list<std::string_view> parameters, size_t required = 0);

// Error where it is not of this kind; `what` says where it stands.
std::string_view text_argument(Heap& heap, const Value& value, std::string_view what);
Integer integer_argument(Heap& heap, const Value& value, std::string_view what);

// A built-in filter, test or method.
template <class Call>
struct Named {
  std::string_view name;
  Call call;
};
template <class Call, size_t kCount>
const Named<Call>* find_named(const Named<Call> (&table)[kCount], std::string_view name) {
  for (const Named<Call>& entry : table)
    if (entry.name == name) return &entry;
  return nullptr;
}

using Call = Value (*)(Heap&, const Value& self, const Arguments&);

}  // namespace lfm2::jinja
