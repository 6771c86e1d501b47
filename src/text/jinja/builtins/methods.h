// The methods of text and dicts.
#pragma once

#include <string_view>

#include "text/jinja/builtins/arguments.h"

namespace lfm2::jinja {

struct Method {
  Value self;
  const Named<Call>* method;
};

// Null where there is no method of this name here.
const Named<Call>* find_text_method(std::string_view name);
const Named<Call>* find_dict_method(std::string_view name);

Value split(Heap& heap, std::string_view text, std::string_view separator, Integer max_cuts);  // as str.split
Value replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to);

}  // namespace lfm2::jinja
