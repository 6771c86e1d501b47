// The tokenizer of the golden cases with LFM2's tokens of tool calls.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "support/golden.h"
#include "support/weights_support.h"

namespace lfm2::test {

inline std::string tokenizer_with_calls() {
  std::string json = read_bytes(golden_dir() / "text" / "tokenizer.json");
  for (const auto& [from, to] :
       {std::pair{"\"<|im_start|>\"", "\"<|tool_call_start|>\""}, {"\"<|im_end|>\"", "\"<|tool_call_end|>\""}})
    for (size_t at = 0; (at = json.find(from, at)) != std::string::npos;)
      json.replace(at, std::string_view(from).size(), to);
  return json;
}

}  // namespace lfm2::test
