// Cuts a template into tokens, as Jinja does with trim_blocks and lstrip_blocks: it drops newlines after a block's end
// and blanks before a block's start.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2::jinja {

enum class TokenKind : uint8_t {
  kData,           // text between the tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kText,  // a literal, without its quotes
  kInteger,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string_view text;
  int64_t number = 0;  // of kInteger
};

// A template's source, and the texts that its tokens and its syntax tree point into.
struct Source {
  std::string what;  // names the template in messages
  std::string text;
  std::deque<std::string> unescaped;  // literals whose text differs from the source, because they have escapes
};

[[noreturn]] void fail_at(const Source& source, int line, const std::string& message);

// Normalizes source.text as Jinja does: newlines become \n, and the last one is dropped.
std::vector<Token> tokenize(Source& source);

}  // namespace lfm2::jinja
