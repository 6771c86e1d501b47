// The grammars of a whole text that matches an expression, and of one that is in a list.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "grammar/matcher/grammar.h"

namespace lfm2::grammar {

// Texts that match an ECMA regular expression (pattern.h) from their first to their last character. Refusal naming
// `regex`.
Grammar regex_grammar(std::string_view expression, Limits limits = {});

// The texts of the list, byte by byte. Refusal naming `choice` where it is empty.
Grammar choice_grammar(std::span<const std::string> choices, Limits limits = {});

}  // namespace lfm2::grammar
