// From a template's text to its syntax tree. What is not supported is refused here, with its line.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/jinja/syntax/tree.h"

namespace lfm2::jinja {

// Error(kData) with `what`, which names the template, and the line.
std::unique_ptr<Template> parse_template(std::string_view text, std::string what);

}  // namespace lfm2::jinja
