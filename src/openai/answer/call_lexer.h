// Brackets, strings and comments of a text, byte by byte: what is needed to see where a call ends while it comes.
#pragma once

#include <cstdint>

#include "openai/answer/text_cursor.h"

namespace lfm2 {

class CallLexer {
 public:
  // Takes the next byte.
  void feed(char c) {
    switch (state_) {
      case State::kCode:
        return code(c);
      case State::kComment:
        if (c == '\n') state_ = State::kCode;
        return;
      case State::kQuotes:
        return quotes(c);
      case State::kString:
        return string(c);
    }
  }
  // Whether the byte that was fed last is outside of strings, comments and brackets, but for the bracket that it
  // closes.
  bool outside() const { return state_ == State::kCode && depth_ <= 0; }
  int64_t depth() const { return depth_; }

 private:
  enum class State : uint8_t { kCode, kComment, kQuotes, kString };

  void code(char c) {
    if (TextCursor::is_quote(c)) {
      state_ = State::kQuotes;
      quote_ = c;
      count_ = 1;
    } else if (c == '#') {
      state_ = State::kComment;
    } else if (c == '(' || c == '[' || c == '{') {
      ++depth_;
    } else if (c == ')' || c == ']' || c == '}') {
      --depth_;
    }
  }
  // One or two quotes were read: the string is empty, or begins with three.
  void quotes(char c) {
    if (c == quote_ && ++count_ < 3) return;
    if (c != quote_ && count_ == 2) {
      state_ = State::kCode;
      return code(c);
    }
    state_ = State::kString;
    triple_ = count_ == 3;
    count_ = 0;
    escaped_ = false;
    if (!triple_) string(c);
  }
  void string(char c) {
    const bool closes = c == quote_ && !escaped_;
    escaped_ = c == '\\' && !escaped_;
    count_ = closes ? count_ + 1 : 0;
    if (count_ == (triple_ ? 3 : 1)) state_ = State::kCode;
  }

  State state_ = State::kCode;
  char quote_ = '\0';
  int count_ = 0;  // quotes in a row
  bool triple_ = false, escaped_ = false;
  int64_t depth_ = 0;
};

}  // namespace lfm2
