// How LFM2 writes calls of tools and thoughts: what is read out of its answers and written into its prompts.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

namespace lfm2 {

inline constexpr std::string_view kBeginCalls = "<|tool_call_start|>",
                                  kEndCalls = "<|tool_call_end|>";  // special tokens
inline constexpr std::string_view kBeginThought = "<think>", kEndThought = "</think>";

// The characters of names of functions and parameters: dots and hyphens, too, and letters beyond ASCII.
inline bool is_call_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' || (c & 0x80) != 0;
}

// Calls of OpenAI's form, {"function": {"name", "arguments"}} with an object as arguments, between the special tokens:
// a list in Python's syntax with JSON's strings, which the reader of calls reads as the same calls.
std::string tool_calls_text(const OrderedJson& calls);

}  // namespace lfm2
