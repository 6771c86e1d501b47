// The cases of text, as Python's str has them. All but lower() take ASCII alone: names of roles and of types.
#pragma once

#include <string_view>

#include "text/jinja/values/heap.h"

namespace lfm2::jinja {

Value lower(Heap& heap, std::string_view text);
Value upper(Heap& heap, std::string_view text);
Value capitalize(Heap& heap, std::string_view text);
Value title(Heap& heap, std::string_view text);           // a letter behind anything but a letter
Value title_of_words(Heap& heap, std::string_view text);  // the filter: behind spaces and - ( { [ < only

}  // namespace lfm2::jinja
