#include "grammar/gbnf_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/utf8.h"
#include "grammar/expression/expression.h"
#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

}  // namespace

GbnfLexer::GbnfLexer(std::string_view text) : text_(text) {
  if (!is_utf8(text)) throw Refusal("", "grammar", "bytes that are no UTF-8", "UTF-8");
}

void GbnfLexer::refuse(std::string_view expected) const {
  const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
  std::string_view rest = text_.substr(at_, 20);
  rest = rest.substr(0, rest.find('\n'));
  const std::string found = at_end() ? "the end" : rest.empty() ? "the end of the line" : fmt::format("`{}`", rest);
  throw Refusal("", "grammar", fmt::format("{} in line {}", found, line), std::string(expected));
}

bool GbnfLexer::consume(std::string_view expected) {
  if (!text_.substr(at_).starts_with(expected)) return false;
  at_ += expected.size();
  return true;
}

void GbnfLexer::skip_blanks(bool lines) {
  for (; !at_end(); ++at_) {
    if (peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
    const char c = peek();
    if (c != ' ' && c != '\t' && c != '\r' && (c != '\n' || !lines)) return;
  }
}

void GbnfLexer::skip_to_alternative() {
  const size_t before = at_;
  skip_blanks(true);
  if (peek() != '|') at_ = before;
}

std::string_view GbnfLexer::name() {
  const size_t begin = at_;
  while (in_name(peek())) ++at_;
  return text_.substr(begin, at_ - begin);
}

uint32_t GbnfLexer::number() {
  uint32_t value = 0;
  const char* const begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc() || value == kNoMax) refuse("a number of repetitions");
  at_ += static_cast<size_t>(end - begin);
  return value;
}

uint32_t GbnfLexer::hexadecimal(size_t digits) {
  uint32_t value = 0;
  const std::string_view text = text_.substr(at_, digits);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (text.size() < digits || error != std::errc() || end != text.data() + digits || value > 0x10ffff || surrogate)
    refuse(fmt::format("{} hexadecimal digits of a character", digits));
  at_ += digits;
  return value;
}

uint32_t GbnfLexer::character() {
  if (at_end()) refuse("a character");
  if (!consume("\\")) {
    const Utf8Character first = first_character(text_.substr(at_));
    at_ += first.length;
    return first.point;
  }
  constexpr std::string_view kEscapes = "nrt\\\"[]-^", kCharacters = "\n\r\t\\\"[]-^";
  const size_t known = kEscapes.find(peek());
  if (!at_end() && known != std::string_view::npos) {
    ++at_;
    return static_cast<uint8_t>(kCharacters[known]);
  }
  if (consume("x")) return hexadecimal(2);
  if (consume("u")) return hexadecimal(4);
  if (consume("U")) return hexadecimal(8);
  refuse("an escape: \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
}

}  // namespace lfm2::grammar
