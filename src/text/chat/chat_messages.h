// Converts conversations of OpenAI's interface into the form that chat templates expect.
#pragma once

#include <string_view>

#include "base/json/large_json.h"

namespace lfm2 {

// Whether a template handles "content" as a list of parts, that is, tests which of them are text. Templates that only
// dump non-text content as JSON do not.
bool accepts_parts(std::string_view template_source);

// The messages in the form that templates expect. "arguments" of tool calls that are JSON text become an object.
// "content" that is null, or is missing next to tool calls, becomes "". Unless the template accepts_parts, a list of
// parts becomes their text, with line feeds between them, as in vLLM and llama.cpp. Everything else stays as it is.
// Error(kData), naming the place, for a part that is not text and for a message without a role or content.
LargeJson template_messages(const OrderedJson& messages, bool accepts_parts);

}  // namespace lfm2
