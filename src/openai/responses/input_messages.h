// The input of a body of /v1/responses as the messages of a chat.
#pragma once

#include <string>

#include "base/json/large_json.h"

namespace lfm2 {

// `input` is a text, or a list of items: "message", "function_call", "function_call_output" and "reasoning". Of an
// assistant, a thought, then a text, then calls are one message, in this order and each optional; anything else begins
// the next. The role "developer" is "system", which models know. Of "reasoning" only its text counts; a summary and
// encrypted content are of other servers. A message of `instructions`, unless it is "", is the first. A call of a
// function in a namespace has both in its name, with a dot between them. Error(kData) naming `where` and the item, as
// "input[2].type", for all others. The texts are moved out of `input`.
LargeJson messages_of_input(OrderedJson& input, std::string instructions, const std::string& where);

}  // namespace lfm2
