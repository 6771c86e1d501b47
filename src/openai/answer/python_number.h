// Numbers as Python and JSON write them.
#pragma once

#include "base/json/json_fwd.h"
#include "openai/answer/text_cursor.h"

namespace lfm2 {

// Reads -5, + 5, 1_000, 007, 0x1F, 0o17, 0b1, .5, 5. and 2e-3 to the last digit: integers of more than 18 digits and
// floats of more than 15 become a binary value of their digits (LargeIntegers::kDigits). NoLiteral for what is none,
// for complex numbers, and for floats that are too large for a double.
OrderedJson read_number(TextCursor& in);
// Whether a number may begin with this character.
bool begins_number(char c);

}  // namespace lfm2
