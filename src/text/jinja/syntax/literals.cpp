#include "text/jinja/syntax/literals.h"

#include <cmath>
#include <cstdlib>

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

// The end of digits of this base, between which single _ may stand.
size_t end_of_digits(std::string_view text, size_t at, int base) {
  const auto is_digit = [&](size_t i) { return i < text.size() && digit_of(text[i]) < base; };
  while (is_digit(at) || (at < text.size() && text[at] == '_' && is_digit(at + 1))) ++at;
  return at;
}

Value integer_of(std::string_view digits, int base) {
  Integer value = 0;
  for (const char c : digits) {
    if (c == '_') continue;
    if (__builtin_mul_overflow(value, Integer{base}, &value) ||
        __builtin_add_overflow(value, Integer{digit_of(c)}, &value))
      return {};
  }
  return Value::integer(value);
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

NumberLiteral read_number_literal(std::string_view text, bool behind_point) {
  const char second = text.size() > 1 ? static_cast<char>(text[1] | 0x20) : '\0';
  const int base = text[0] != '0' ? 10 : second == 'x' ? 16 : second == 'o' ? 8 : second == 'b' ? 2 : 10;
  if (base != 10) {
    const size_t first = text.size() > 2 && text[2] == '_' ? 3 : 2;
    const size_t end = end_of_digits(text, first, base);
    if (end > first) return {integer_of(text.substr(first, end - first), base), end};
  }
  const size_t whole = end_of_digits(text, 0, 10);
  size_t end = whole;
  const auto digits_at = [&](size_t at) { return at < text.size() && digit_of(text[at]) < 10; };
  if (!behind_point) {
    if (end < text.size() && text[end] == '.' && digits_at(end + 1)) end = end_of_digits(text, end + 1, 10);
    if (end < text.size() && (text[end] | 0x20) == 'e') {
      const size_t sign = end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-') ? 1 : 0;
      if (digits_at(end + 1 + sign)) end = end_of_digits(text, end + 1 + sign, 10);
    }
  }
  if (end > whole) {
    std::string digits;
    for (const char c : text.substr(0, end))
      if (c != '_') digits += c;
    const double value = std::strtod(digits.c_str(), nullptr);
    return {std::isfinite(value) ? Value::real(value) : Value(), end};
  }
  // A zero goes on only with zeros, so that 012 is two tokens.
  size_t integer_end = whole;
  if (text[0] == '0')
    for (integer_end = 1; integer_end < whole &&
                          (text[integer_end] == '0' || (text[integer_end] == '_' && text[integer_end + 1] == '0'));)
      ++integer_end;
  return {integer_of(text.substr(0, integer_end), 10), integer_end};
}

}  // namespace lfm2::jinja
