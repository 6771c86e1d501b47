// Numbers and texts as they are written in templates.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/values/value.h"

namespace lfm2::jinja {

// What escapes like \n and \u00e9 mean, as in Python. Null where it goes well, else what is wrong.
const char* unescape(std::string_view literal, std::string& text);

// The number at the beginning of the text; missing where it does not fit. Behind a point there is no fraction.
struct NumberLiteral {
  Value value;
  size_t bytes = 0;
};
NumberLiteral read_number_literal(std::string_view text, bool behind_point);

}  // namespace lfm2::jinja
