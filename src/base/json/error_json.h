// Errors in the form of OpenAI's interface: of HTTP answers, of streams and of batch lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

namespace lfm2 {

// OpenAI's sentence for a prompt of `tokens` tokens that leaves no room in `most` positions. `field` is what the client
// sent: "messages", "prompt" or "input".
std::string context_length_text(int64_t most, int64_t tokens, std::string_view field);

// {"message", "type", "param", "code"}. The code is the HTTP status, or "context_length_exceeded" for a message with
// the sentence above, because clients that shorten their history go by that word.
OrderedJson error_object(std::string_view message, int status);

}  // namespace lfm2
