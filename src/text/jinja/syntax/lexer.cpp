#include "text/jinja/syntax/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

std::string normalize_newlines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
      continue;
    }
    out += '\n';
    if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The number at the front of `text`, of at most `digits` digits of that base; `used` receives their number.
uint32_t leading_number(std::string_view text, size_t digits, int base, size_t& used) {
  uint32_t number = 0;
  text = text.substr(0, digits);
  used = static_cast<size_t>(std::from_chars(text.data(), text.data() + text.size(), number, base).ptr - text.data());
  return number;
}

// Replaces escapes like \n and \u00e9, as in Python. Returns null, or the text of an error.
const char* unescape(std::string_view literal, std::string& text) {
  for (size_t at = 0; at < literal.size();) {
    if (literal[at] != '\\') {
      text += literal[at++];
      continue;
    }
    ++at;
    const char c = literal[at];  // the lexer has seen that something follows
    if (static_cast<unsigned char>(c) >= 0x80) {
      // Jinja first turns such characters into escapes, so a backslash before one then escapes the new backslash.
      append_code(text, next_character(literal, at));
      continue;
    }
    ++at;
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t place = kLetters.find(c); place != std::string_view::npos) {
      text += kMeanings[place];
    } else if (c == '\n') {
      continue;
    } else if (c >= '0' && c < '8') {
      size_t used = 0;
      append_utf8(text, leading_number(literal.substr(at - 1), 3, 8, used));
      at += used - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      size_t used = 0;
      const uint32_t character = leading_number(literal.substr(at), digits, 16, used);
      if (used < digits) return "a truncated escape in a text";
      at += used;
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

class Lexer {
 public:
  explicit Lexer(Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data();
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) { fail_at(source_, line_of(at_), message); }

  // Positions arrive in order, so each newline is counted once.
  int line_of(size_t at) {
    for (; counted_ < at; ++counted_)
      if (text_[counted_] == '\n') ++line_;
    return line_;
  }

  bool follows(std::string_view part) const { return text_.substr(at_).starts_with(part); }

  void add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_of(at_), text}); }

  size_t skip_spaces(size_t at) const {
    while (at < text_.size()) {
      size_t next = at;
      if (!is_space(next_character(text_, next))) break;
      at = next;
    }
    return at;
  }

  // The text up to the tag at `tag`, without the whitespace that the tag's sign or lstrip_blocks removes.
  void add_data(size_t tag, char sign, bool strips_blanks) {
    std::string_view data = text_.substr(at_, tag - at_);
    if (sign == '-') {
      data = strip(data, Ends::kRight);
    } else if (sign != '+' && strips_blanks) {
      const size_t newline = data.rfind('\n');
      const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_starts_) && strip(data.substr(begin)).empty()) data = data.substr(0, begin);
    }
    if (!data.empty()) add(TokenKind::kData, data);
    at_ = tag;
  }

  // Moves past a tag's end and the whitespace that it strips or trims. `length`: of the end itself, its sign included.
  void end_tag(size_t length, bool strips, bool trims) {
    size_t end = at_ + length;
    if (strips)
      end = skip_spaces(end);
    else if (trims && end < text_.size() && text_[end] == '\n')
      ++end;
    line_starts_ = text_[end - 1] == '\n';
    at_ = end;
  }

  void read_data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= text_.size()) {
        add_data(text_.size(), '+', false);
        return;
      }
      const char kind = text_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const char kind = text_[tag + 1];
    const char next = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    add_data(tag, sign, kind != '{');
    const size_t opening = sign == '\0' ? 2 : 3;
    if (kind == '#') {
      at_ += opening;
      skip_comment();
    } else if (kind == '{') {
      add(TokenKind::kVariableBegin, text_.substr(at_, opening));
      at_ += opening;
      read_tag(false);
    } else if (!read_raw(opening)) {
      add(TokenKind::kBlockBegin, text_.substr(at_, opening));
      at_ += opening;
      read_tag(true);
    }
  }

  void skip_comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) fail("Missing end of comment tag");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    at_ = end;
    end_tag(2, sign == '-', sign != '+');
  }

  // {% raw %} … {% endraw %}, whose inside is data.
  bool read_raw(size_t opening) {
    size_t begin = skip_spaces(at_ + opening);
    if (!text_.substr(begin).starts_with("raw")) return false;
    begin = skip_spaces(begin + 3);
    const bool strips = text_.substr(begin).starts_with("-%}");
    if (!strips && !text_.substr(begin).starts_with("%}")) return false;
    at_ = begin;
    end_tag(strips ? 3 : 2, strips, false);
    for (size_t tag = at_;; ++tag) {
      tag = text_.find("{%", tag);
      if (tag == std::string_view::npos) fail("Missing end of raw directive");
      const char next = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      const char sign = next == '-' || next == '+' ? next : '\0';
      size_t end = skip_spaces(tag + (sign == '\0' ? 2 : 3));
      if (!text_.substr(end).starts_with("endraw")) continue;
      end = skip_spaces(end + 6);
      const std::string_view rest = text_.substr(end);
      const bool signed_end = rest.starts_with("-%}") || rest.starts_with("+%}");
      if (!signed_end && !rest.starts_with("%}")) continue;
      add_data(tag, sign, true);
      at_ = end;
      end_tag(signed_end ? 3 : 2, rest[0] == '-', rest[0] == '%');
      return true;
    }
  }

  // The tokens up to the end of {{ }} or {% %}. Ends within brackets are operators.
  void read_tag(bool block) {
    const std::string_view close = block ? "%}" : "}}";
    std::string brackets;  // brackets that are still open
    while (at_ < text_.size()) {
      if (brackets.empty()) {
        const bool strips = follows(block ? "-%}" : "-}}"), plus = block && follows("+%}");
        if (strips || plus || follows(close)) {
          add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, close);
          end_tag(strips || plus ? 3 : 2, strips, block && !plus);
          return;
        }
      }
      const size_t behind = skip_spaces(at_);
      if (behind > at_)
        at_ = behind;
      else
        read_token(brackets);
    }
  }

  void read_token(std::string& brackets) {
    const char c = text_[at_];
    if (c >= '0' && c <= '9') {
      read_number();
    } else if (is_name_byte(c)) {
      size_t end = at_;
      while (end < text_.size() && is_name_byte(text_[end])) ++end;
      add(TokenKind::kName, text_.substr(at_, end - at_));
      at_ = end;
    } else if (c == '\'' || c == '"') {
      read_text(c);
    } else {
      read_operator(brackets);
    }
  }

  void read_number() {
    constexpr std::string_view kDigits = "0123456789";
    constexpr size_t kMaxDigits = 18;
    const size_t end = std::min(text_.find_first_not_of(kDigits, at_), text_.size());
    // After a point it is an index: x.0.1
    const bool fraction = (at_ == 0 || text_[at_ - 1] != '.') && end + 1 < text_.size() && text_[end] == '.' &&
                          kDigits.find(text_[end + 1]) != std::string_view::npos;
    const bool goes_on = fraction || (end < text_.size() && is_name_byte(text_[end]));
    if (goes_on || end - at_ > kMaxDigits || (text_[at_] == '0' && end > at_ + 1)) {
      size_t whole = end;
      while (whole < text_.size() && whole < at_ + 2 * kMaxDigits &&
             (is_name_byte(text_[whole]) || text_[whole] == '.'))
        ++whole;
      fail(unsupported(fmt::format("the number '{}'", text_.substr(at_, whole - at_))));
    }
    add(TokenKind::kInteger, text_.substr(at_, end - at_));
    for (; at_ < end; ++at_) tokens_.back().number = 10 * tokens_.back().number + (text_[at_] - '0');
  }

  void read_text(char quote) {
    size_t end = at_ + 1;
    bool escapes = false;
    while (end < text_.size() && text_[end] != quote) {
      escapes |= text_[end] == '\\';
      end += text_[end] == '\\' ? 2 : 1;
    }
    if (end >= text_.size()) fail("a text that nothing closes");
    std::string_view literal = text_.substr(at_ + 1, end - at_ - 1);
    if (escapes) {
      std::string text;
      if (const char* reason = unescape(literal, text)) fail(reason);
      literal = source_.unescaped.emplace_back(std::move(text));
    }
    add(TokenKind::kText, literal);
    at_ = end + 1;
  }

  void read_operator(std::string& brackets) {
    if (follows("/") || follows("**"))
      fail(unsupported(fmt::format("the operator '{}'", follows("//") ? "//" : follows("/") ? "/" : "**")));
    constexpr std::string_view kTwo[] = {"==", "!=", ">=", "<="};
    const bool two = std::any_of(std::begin(kTwo), std::end(kTwo), [&](std::string_view op) { return follows(op); });
    const char c = text_[at_];
    if (!two && std::string_view("+-*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      size_t end = at_;
      next_character(text_, end);
      fail(fmt::format("unexpected char '{}'", text_.substr(at_, end - at_)));
    }
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty()) fail(fmt::format("unexpected '{}'", c));
      if (brackets.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, brackets.back()));
      brackets.pop_back();
    }
    add(TokenKind::kOperator, text_.substr(at_, two ? 2 : 1));
    at_ += two ? 2 : 1;
  }

  Source& source_;
  const std::string_view text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  bool line_starts_ = true;  // whether the last token ended a line
  size_t counted_ = 0;
  int line_ = 1;
};

}  // namespace

void fail_at(const Source& source, int line, const std::string& message) {
  throw Error(ExitCode::kData, fmt::format("{}: line {}: {}", source.what, line, message));
}

std::vector<Token> tokenize(Source& source) {
  source.text = normalize_newlines(source.text);
  return Lexer(source).run();
}

}  // namespace lfm2::jinja
