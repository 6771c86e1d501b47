#include "text/jinja/syntax/literals.h"

#include "text/jinja/values/python_text.h"

namespace lfm2::jinja {

namespace {

int digit_of(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : 99;
}

// \x, \u and \U with so many digits; `at` is behind the letter.
bool read_hex(std::string_view literal, size_t& at, size_t digits, char32_t& character) {
  if (literal.size() - at < digits) return false;
  character = 0;
  for (size_t i = 0; i < digits; ++i) {
    const int digit = digit_of(literal[at++]);
    if (digit > 15) return false;
    character = character << 4 | static_cast<char32_t>(digit);
  }
  return true;
}

}  // namespace

const char* unescape(std::string_view literal, std::string& text) {
  for (size_t at = 0; at < literal.size();) {
    if (literal[at] != '\\') {
      text += literal[at++];
      continue;
    }
    const size_t backslash = at++;
    const char c = literal[at];  // the lexer has seen that something follows
    if (static_cast<unsigned char>(c) >= 0x80) {
      // Jinja writes such characters as escapes first, and the backslash before then escapes the new one.
      append_code(text, next_character(literal, at));
      continue;
    }
    ++at;
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t place = kLetters.find(c); place != std::string_view::npos) {
      text += kMeanings[place];
    } else if (c == '\n') {
      continue;
    } else if (digit_of(c) < 8) {
      at = backslash + 1;
      char32_t character = 0;
      for (int i = 0; i < 3 && at < literal.size() && digit_of(literal[at]) < 8; ++i)
        character = character * 8 + static_cast<char32_t>(digit_of(literal[at++]));
      append_utf8(text, character);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      char32_t character = 0;
      if (!read_hex(literal, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, character)) return "a truncated escape in a text";
      if (character > 0x10ffff || (character >= 0xd800 && character < 0xe000))
        return "an escape that is no character is not supported";
      append_utf8(text, character);
    } else if (c == 'N') {
      return "escapes with \\N are not supported";
    } else {
      (text += '\\') += c;
    }
  }
  return nullptr;
}

}  // namespace lfm2::jinja
