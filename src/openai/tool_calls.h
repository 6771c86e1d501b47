// The calls that a model writes between its special tokens for tool calls, as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2 {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as text
  bool operator==(const ToolCall&) const = default;
};

// Parses calls as LFM2 writes them, a list in Python's syntax: [name(key="value", other=[1, None]), second()]. Also
// parses JSON, an object or a list of {"name", "arguments"}. Nothing if the text is neither.
std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view text);

}  // namespace lfm2
