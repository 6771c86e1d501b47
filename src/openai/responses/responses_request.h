// Bodies of /v1/responses, OpenAI's newer interface, as the chats that they ask for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "openai/openai_request.h"

namespace lfm2 {

// A function of a body of /v1/responses. `space`: its namespace, if it has one.
struct FunctionName {
  std::optional<std::string> space;
  std::string name;
};
// By their names in the chat: that of a function in a namespace begins with the namespace and a dot.
using FunctionNames = std::map<std::string, FunctionName>;

// What the answer to a body of /v1/responses has beside that of a chat.
struct ResponsesShape {
  OrderedJson repeated;  // fields of the body
  FunctionNames functions;
};

// Rewrites the body as one of /v1/chat/completions and reads that: "input" and "instructions" become its messages, and
// "text" its "response_format". Nothing is stored, so fields that ask for stored responses or for tools of the server
// are refused by name; fields of chats that the interface lacks (such as "seed") count. Error(kData) as
// parse_openai_request(). The result has one request and a `response`.
OpenAiRequest parse_responses_request(std::string_view body, const LineContext& context,
                                      const RequestDefaults& defaults, const RequestLimits& limits,
                                      std::optional<uint64_t> fresh_seed = {});

}  // namespace lfm2
