// The calls of functions as LFM2 writes them, as a grammar:
//
//   START "[" name "(" argument = value, … ")", … "]" END
//
// START and END are tokens by their ids. Arguments come in the order of the function's properties, values as Python
// literals with the words and quotes of both Python and JSON. So every text is a list of valid calls.
#pragma once

#include <string>
#include <string_view>

#include "grammar/matcher/grammar.h"

namespace lfm2::grammar {

struct CallListOptions {
  TokenId start = 0, end = 0;
  std::string only;      // the one function that may be called; empty: any
  bool parallel = true;  // several calls in the list
};

// `tools`: JSON as OpenAI's clients send it, [{"type": "function", "function": {"name", "parameters"}}]. The grammar is
// finished. Refusal, with the place in `tools`, for a schema that is not computed or that allows no object, for a name
// that cannot be written, and where no function is left.
Grammar call_list_grammar(std::string_view tools, const CallListOptions& options, const Limits& limits = {});

}  // namespace lfm2::grammar
