// Jinja's filters and tests.
#pragma once

#include <string_view>

#include "text/jinja/builtins/arguments.h"

namespace lfm2::jinja {

const Named<Call>* find_filter(std::string_view name);  // null where there is none of this name here
const Named<Call>* find_sequence_filter(std::string_view name);
Value apply_filter(Heap& heap, const Named<Call>& filter, const Value& input, const Arguments& arguments);

using Test = bool (*)(Heap&, const Value& value, const Arguments&);
const Named<Test>* find_test(std::string_view name);

// The value's attribute, as filters take attributes by name; the value itself for none.
Value follow(Heap& heap, const Value& value, const Value& attribute);

}  // namespace lfm2::jinja
