// Texts as they are written in templates.
#pragma once

#include <string>
#include <string_view>

namespace lfm2::jinja {

// What escapes like \n and \u00e9 mean, as in Python. Null where it goes well, else what is wrong.
const char* unescape(std::string_view literal, std::string& text);

}  // namespace lfm2::jinja
