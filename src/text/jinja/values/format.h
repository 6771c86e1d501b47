// Values as text: Python's str() and repr(), and json.dumps().
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/values/heap.h"
#include "text/jinja/values/value.h"

namespace lfm2::jinja {

void append_str(Heap& heap, std::string& out, const Value& value);
void append_repr(Heap& heap, std::string& out, const Value& value);
// The value as a text: itself where it is one.
Value str(Heap& heap, const Value& value);

struct JsonForm {
  bool ascii = false;
  bool sorted = false;
  bool lines = false;  // each item on a separate line, indented by `indent` for each level
  std::string_view indent;
  std::string_view between_items = ", ", after_key = ": ";
};
void append_json(Heap& heap, std::string& out, const Value& value, const JsonForm& form, int level = 0);

std::string integer_text(Integer value);

}  // namespace lfm2::jinja
