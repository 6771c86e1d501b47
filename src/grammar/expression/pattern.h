// Regular expressions of ECMA-262 (with its flag u) as sets of texts.
//
// Accepted: literals, ., classes with ranges, \d \w \s and their complements, \p{general category}, \cX \xHH \uHHHH
// \u{H…} and the control escapes, groups (named or not), (?i:…), alternation, * + ? {m,n} with lazy forms, ^ and $.
// As in browsers' patterns without u, a { } or ] that closes nothing is a literal, and punctuation may be escaped.
// Refused by name: look-around, back references, \b and \B, scripts, possessive quantifiers.
#pragma once

#include <string_view>

#include "grammar/expression/text_set.h"

namespace lfm2::grammar {

enum class Anchors {
  kSearch,  // the expression matches anywhere in the text, as JSON Schema's `pattern`
  kWhole,   // it matches the whole text
};

// Refusal, without pointer and keyword, names the construct and its byte in `expression`.
TextSet parse_pattern(std::string_view expression, Anchors anchors);

}  // namespace lfm2::grammar
