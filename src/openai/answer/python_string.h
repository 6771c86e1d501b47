// Strings as Python and JSON write them.
#pragma once

#include <string>

#include "openai/answer/quote_repair.h"
#include "openai/answer/text_cursor.h"

namespace lfm2 {

// How the literals of a call are read.
struct LiteralSyntax {
  bool json = false;     // "\/" is a slash, as in JSON
  bool repairs = false;  // a quote inside a string belongs to it, unless what follows shows that the string ends there
};

// Whether a string begins here: a quote, or a prefix such as r or f and a quote.
bool begins_string(const TextCursor& in);
// Reads '...', "...", three quotes of either kind, r'...' and f'...' without places; neighbouring strings are one. Line
// feeds may stand as they are. Bytes that are no UTF-8 become U+FFFD. NoLiteral for what is none, for b'...', for
// halves of surrogate pairs, and for what cannot be repaired.
std::string read_string(TextCursor& in, const LiteralSyntax& syntax, StringPlace place);

}  // namespace lfm2
