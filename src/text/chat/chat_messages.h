// Conversations as clients of OpenAI's interface send them, in the form that chat templates take.
#pragma once

#include <string_view>

#include "base/json/large_json.h"

namespace lfm2 {

// Whether a template takes "content" as a list of parts: then it asks which of them are text. (Those that only put
// whatever is no text into JSON do not.)
bool accepts_parts(std::string_view template_source);

// The messages in the form that templates expect. "arguments" of tool calls that are JSON text become the object.
// "content" that is null, or is missing beside tool calls, becomes "". Unless the template accepts_parts, a list of
// parts becomes their text, with line feeds between them, as in vLLM and llama.cpp. Everything else stays as it is.
// Error(kData) for a part that is no text, and, naming the place, for a message without a role or without content.
LargeJson template_messages(const OrderedJson& messages, bool accepts_parts);

}  // namespace lfm2
