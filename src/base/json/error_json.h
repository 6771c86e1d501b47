// Errors in OpenAI's form, for HTTP responses, event streams and batch lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

namespace lfm2 {

// OpenAI's sentence for a prompt of `tokens` tokens that is too long for a context of `most` positions. `field` is the
// client's field: "messages", "prompt" or "input".
std::string context_length_text(int64_t most, int64_t tokens, std::string_view field);

// {"message", "type", "param", "code"}. The param is the field that a client's error names first, as in `request: "n"
// is 0`. The code is the HTTP status, or "context_length_exceeded" for the sentence above, because clients shorten
// their history when they see that code.
OrderedJson error_object(std::string_view message, int status);

}  // namespace lfm2
