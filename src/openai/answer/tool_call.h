// A call of a tool as a model writes it, read from text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lfm2 {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as text
  bool operator==(const ToolCall&) const = default;
};

struct ToolCallText {
  ToolCall call;
  size_t end;  // of its text
};

// Reads the call at `at`: name(key=value, ...) or name(**{...}) with the literals of read_literal(); or an object with
// "name" and "arguments" or "parameters". Those may be missing, null, an object, or the text of one. {"function": ...}
// of OpenAI's form around the object is left out. `repairs`: quotes inside of strings may lack their backslash. Nothing
// where the text is no call.
std::optional<ToolCallText> read_tool_call(std::string_view text, size_t at, bool repairs);

// What follows a call in a list of calls, or in a text of several lists or lines.
struct AfterCall {
  enum class Kind {
    kCall,   // another call
    kEnd,    // nothing but the end of the list
    kOpen,   // nothing, but the list is not closed, or another call has only begun
    kOther,  // something else
  };
  Kind kind;
  size_t at;     // where it begins
  bool in_list;  // whether a bracket is open there
};
AfterCall after_call(std::string_view text, size_t at, bool in_list);
// The same for the beginning of a text.
AfterCall first_call(std::string_view text);

}  // namespace lfm2
