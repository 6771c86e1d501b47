// What a request constrains its answer to: "response_format" and "tool_choice" of OpenAI's interface,
// "structured_outputs" and "guided_json", "guided_regex", "guided_choice", "guided_grammar" of vLLM's.
#pragma once

#include <string>

#include "openai/request_fields.h"

namespace lfm2 {

// The constraint in the text form of grammar::compile_constraint(), "" if the answer is free. In a conversation a
// thought may precede it; `in_thought`: the prompt ends inside one. `responses`: "text.format" counts, too, which a
// body of /v1/responses has after it became a chat. Error(kData) naming the field for a constraint that cannot be
// computed, and for more than one.
std::string read_constraint(FieldReader& fields, LineForm form, bool in_thought, bool responses);

}  // namespace lfm2
