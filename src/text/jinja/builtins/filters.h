// Jinja's filters and tests.
#pragma once

#include <string_view>

#include "text/jinja/builtins/arguments.h"

namespace lfm2::jinja {

struct Filter {
  std::string_view name;
  Call call;                  // null: Jinja has it, this interpreter lacks it
  bool takes_markup = false;  // does to text that is marked safe what it does to any other
};
const Filter* find_filter(std::string_view name);  // null where Jinja has none of this name
Value apply_filter(Heap& heap, const Filter& filter, const Value& input, const Arguments& arguments);

using Test = bool (*)(Heap&, const Value& value, const Arguments&);
const Named<Test>* find_test(std::string_view name);

// value.a.b for the name "a.b", value[0] for 0, as filters take attributes; the value itself for none. `otherwise`
// takes the place of what is undefined, where it is given.
Value follow(Heap& heap, Value value, const Value& attribute, const Value& otherwise = {});

// The filters that work on sequences are in sequence_filters.cpp.
extern const Filter kSequenceFilters[];
extern const size_t kSequenceFilterCount;

}  // namespace lfm2::jinja
