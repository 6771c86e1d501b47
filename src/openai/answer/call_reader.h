// Calls of tools out of a block: the text between the tokens that begin and end calls, while it comes.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "openai/answer/call_lexer.h"
#include "openai/answer/tool_call.h"

namespace lfm2 {

// A call, or text of the block that is none.
using CallPart = std::variant<ToolCall, std::string>;

// A block is a list of calls, with or without brackets, or several lists or lines (read_tool_call). A call comes out as
// soon as another one begins after it, and the last one at the end, so that text after it can still show that the block
// is no list of calls. Missing backslashes are looked for only at the end, when all of the block is known. What is read
// does not depend on how the bytes come.
class CallReader {
 public:
  // The next bytes of the block. Returns the calls that are certain by now.
  std::vector<CallPart> feed(std::string_view bytes);
  // The end of the block; `cut`: the text ended before the model ended it. Returns the rest: calls, and the text of
  // what is none. Without a single call that is the text of the whole block.
  std::vector<CallPart> end(bool cut);
  // All bytes of the block.
  const std::string& text() const { return text_; }

 private:
  void begin_call(const AfterCall& next);
  bool confirm(std::vector<CallPart>& parts);
  size_t lexical_end() const;

  std::string text_;
  CallLexer lexer_;                 // of the call at at_
  size_t at_ = 0, lexed_ = 0;       // where the next call begins; how much lexer_ has seen
  size_t end_ = std::string::npos;  // of the call at at_, where it has ended
  bool began_ = false, in_list_ = false;
  bool waits_ = false;  // for the end of the block: the text is not plainly calls
  size_t calls_ = 0;    // that came out
};

}  // namespace lfm2
