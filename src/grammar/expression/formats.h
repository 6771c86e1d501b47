// The formats of JSON Schema, drafts 4 to 2020-12, as sets of texts.
#pragma once

#include <optional>
#include <string_view>

#include "grammar/expression/text_set.h"

namespace lfm2::grammar {

// The texts of a format: all of them, or fewer where format_is_exact() is false. Nothing where the name is unknown:
// then the format is an annotation. Refusal for "regex", whose texts are no regular language.
std::optional<TextSet> format_set(std::string_view name);

// Whether format_set() has all texts of the format, so that its complement has none of them.
bool format_is_exact(std::string_view name);

}  // namespace lfm2::grammar
