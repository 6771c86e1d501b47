// A place in a text that calls of tools are read from.
#pragma once

#include <cctype>
#include <string_view>

#include "text/chat/tool_call_text.h"

namespace lfm2 {

// The text is no call, or no value of one.
struct NoLiteral {};

class TextCursor {
 public:
  explicit TextCursor(std::string_view text, size_t at = 0) : text_(text), at_(at) {}

  std::string_view text() const { return text_; }
  size_t at() const { return at_; }
  bool at_end() const { return at_ >= text_.size(); }
  std::string_view rest() const { return text_.substr(at_); }
  char next() const { return at_end() ? '\0' : text_[at_]; }  // '\0' at the end, too
  void skip(size_t bytes) { at_ += bytes; }

  // Skips blanks, line feeds and comments as Python has them.
  void skip_blanks() {
    while (!at_end() && (is_blank(next()) || next() == '#')) {
      if (next() == '#')
        while (!at_end() && next() != '\n') ++at_;
      else
        ++at_;
    }
  }
  // The character after blanks; '\0' at the end, too.
  char peek() {
    skip_blanks();
    return next();
  }
  bool accept(char c) {
    if (peek() != c || at_end()) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw NoLiteral{};
  }
  // The name after blanks; empty where there is none.
  std::string_view name() {
    skip_blanks();
    const size_t begin = at_;
    while (!at_end() && is_call_name(next())) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  static bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_quote(char c) { return c == '\'' || c == '"'; }

 private:
  std::string_view text_;
  size_t at_;
};

// The text without blanks at its ends.
inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && TextCursor::is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && TextCursor::is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace lfm2
