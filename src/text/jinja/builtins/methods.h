// The methods of text, lists and dicts.
#pragma once

#include <string_view>

#include "text/jinja/builtins/arguments.h"

namespace lfm2::jinja {

struct Method {
  Value self;
  const Named<Call>* method;
};

// Null where Python's type has no attribute of this name.
const Named<Call>* find_text_method(std::string_view name);
const Named<Call>* find_list_method(std::string_view name);
const Named<Call>* find_dict_method(std::string_view name);

// The pieces that str.split cuts; `separator` is missing or none for runs of spaces.
Value split(Heap& heap, std::string_view text, const Value& separator, Integer max_cuts);
Value replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to, Integer max_count);

}  // namespace lfm2::jinja
