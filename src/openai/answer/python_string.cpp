#include "openai/answer/python_string.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/utf8.h"
#include "text/stream_decoder.h"

namespace lfm2 {

namespace {

// The letters before a quote; npos where no string begins.
size_t prefix_length(std::string_view rest) {
  constexpr std::string_view kLetters = "rRfFuUbB";
  size_t length = 0;
  while (length < std::min<size_t>(2, rest.size()) && kLetters.find(rest[length]) != std::string_view::npos) ++length;
  return length < rest.size() && TextCursor::is_quote(rest[length]) ? length : std::string_view::npos;
}

// Reads the escapes of one string.
class EscapeReader {
 public:
  EscapeReader(TextCursor& in, bool json) : in_(in), json_(json) {}

  // The escape whose backslash was read.
  void read(std::string& text) {
    const char escaped = in_.next();
    in_.skip(1);
    constexpr std::string_view kNames = "ntrabfv\\'\"", kValues = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t known = kNames.find(escaped); known != std::string_view::npos)
      text += kValues[known];
    else if (escaped == '\n')  // the line continues
      return;
    else if (escaped == '/' && json_)
      text += '/';
    else if (escaped == 'x' || escaped == 'u' || escaped == 'U')
      append_utf8(text, code_point(escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8));
    else if (escaped >= '0' && escaped <= '7')
      append_utf8(text, octal(escaped));
    else  // Python keeps what it does not know
      (text += '\\') += escaped;
  }

 private:
  uint32_t hexadecimal(size_t digits) {
    const std::string_view word = in_.rest().substr(0, digits);
    uint32_t point = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), point, 16);
    if (word.size() < digits || error != std::errc() || end != word.data() + word.size()) throw NoLiteral{};
    in_.skip(digits);
    return point;
  }
  // Two surrogate halves, as JSON has them, are one character.
  uint32_t code_point(size_t digits) {
    uint32_t point = hexadecimal(digits);
    const auto is_half = [](uint32_t some, uint32_t first) { return some >= first && some < first + 0x400; };
    if (is_half(point, 0xd800) && in_.rest().starts_with("\\u")) {
      in_.skip(2);
      const uint32_t second = hexadecimal(4);
      if (!is_half(second, 0xdc00)) throw NoLiteral{};
      point = 0x10000 + ((point - 0xd800) << 10) + (second - 0xdc00);
    }
    if (point > 0x10ffff || is_half(point, 0xd800) || is_half(point, 0xdc00)) throw NoLiteral{};
    return point;
  }
  // Of one to three digits, the first of which was read.
  uint32_t octal(char first) {
    auto point = static_cast<uint32_t>(first - '0');
    for (int i = 1; i < 3 && in_.next() >= '0' && in_.next() <= '7'; ++i) {
      point = point * 8 + static_cast<uint32_t>(in_.next() - '0');
      in_.skip(1);
    }
    return point;
  }

  TextCursor& in_;
  const bool json_;
};

// Decides which quotes of a string belong to it.
class QuoteReader {
 public:
  // The opening quote is next; it is skipped.
  QuoteReader(TextCursor& in, bool repairs, StringPlace place) : in_(in), place_(place) {
    const char quote = in.next();
    const bool triple = in.rest().starts_with(std::string(3, quote));
    quotes_ = std::string(triple ? 3 : 1, quote);
    repairs_ = repairs && !triple;
    in.skip(quotes_.size());
  }
  // Whether the string ends here; its closing quotes are skipped then.
  bool ends() {
    if (!in_.rest().starts_with(quotes_)) return false;
    const size_t after = in_.at() + quotes_.size();
    if (repairs_ && !may_end_string(in_.text(), after, place_)) {
      if ((!repaired_ && is_operand(in_.text(), after)) || begins_argument(in_.text(), in_.at())) throw NoLiteral{};
      repaired_ = true;
      return false;
    }
    in_.skip(quotes_.size());
    return true;
  }

 private:
  TextCursor& in_;
  std::string quotes_;
  bool repairs_ = false, repaired_ = false;
  const StringPlace place_;
};

std::string read_one(TextCursor& in, const LiteralSyntax& syntax, StringPlace place) {
  const size_t prefix = prefix_length(in.rest());
  if (prefix == std::string_view::npos) throw NoLiteral{};
  const std::string_view letters = in.rest().substr(0, prefix);
  const bool raw = letters.find_first_of("rR") != std::string_view::npos,
             format = letters.find_first_of("fF") != std::string_view::npos;
  if (letters.find_first_of("bB") != std::string_view::npos) throw NoLiteral{};
  in.skip(prefix);
  QuoteReader quotes(in, syntax.repairs, place);
  EscapeReader escapes(in, syntax.json);
  std::string text;
  while (!quotes.ends()) {
    if (in.at_end()) throw NoLiteral{};
    const char c = in.next();
    in.skip(1);
    if (c == '\\' && !in.at_end() && raw) {
      (text += c) += in.next();
      in.skip(1);
    } else if (c == '\\' && !in.at_end()) {
      escapes.read(text);
    } else if (format && (c == '{' || c == '}')) {
      if (in.next() != c) throw NoLiteral{};  // a place, whose value nobody knows
      in.skip(1);
      text += c;
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

bool begins_string(const TextCursor& in) { return prefix_length(in.rest()) != std::string_view::npos; }

std::string read_string(TextCursor& in, const LiteralSyntax& syntax, StringPlace place) {
  in.skip_blanks();
  std::string bytes = read_one(in, syntax, place);
  while (!syntax.repairs) {
    TextCursor behind = in;
    behind.skip_blanks();
    if (!begins_string(behind)) break;
    in = behind;
    bytes += read_one(in, syntax, place);
  }
  return utf8_text(bytes);
}

}  // namespace lfm2
