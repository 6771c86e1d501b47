#include "openai/tool_calls.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/error.h"
#include "base/json/json.h"
#include "base/utf8.h"

namespace lfm2 {

namespace {

struct NoCall {};  // the text is no list of calls

// Reads calls and their values; throws NoCall.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  std::vector<ToolCall> calls() {
    std::vector<ToolCall> calls;
    const bool list = accept('[');
    do {
      if (list && peek() == ']') break;
      calls.push_back(call());
    } while (accept(','));
    if (list) expect(']');
    skip_blanks();
    if (at_ < text_.size() || calls.empty()) throw NoCall{};
    return calls;
  }

 private:
  static constexpr int kMaxDepth = 64;

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  char peek() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw NoCall{};
  }
  std::string_view name() {
    skip_blanks();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_' ||
                                  text_[at_] == '.' || text_[at_] == '-' || (text_[at_] & 0x80) != 0))
      ++at_;
    if (at_ == begin) throw NoCall{};
    return text_.substr(begin, at_ - begin);
  }
  ToolCall call() {
    ToolCall call{std::string(name()), {}};
    OrderedJson arguments = OrderedJson::object();
    expect('(');
    while (peek() != ')') {
      const std::string key(name());
      expect('=');
      arguments[key] = value(0);
      if (!accept(',')) break;
    }
    expect(')');
    call.arguments = json_text(arguments);
    return call;
  }
  OrderedJson value(int depth) {
    if (depth > kMaxDepth) throw NoCall{};
    const char first = peek();
    if (first == '"' || first == '\'') return string();
    if (first == '[' || first == '(') return list(depth);
    if (first == '{') return object(depth);
    if (first == '-' || first == '+' || std::isdigit(static_cast<unsigned char>(first)) != 0) return number();
    const std::string_view word = name();
    if (word == "True" || word == "true") return true;
    if (word == "False" || word == "false") return false;
    if (word == "None" || word == "null") return nullptr;
    throw NoCall{};
  }
  OrderedJson list(int depth) {
    const char end = text_[at_++] == '[' ? ']' : ')';
    OrderedJson list = OrderedJson::array();
    while (peek() != end) {
      list.push_back(value(depth + 1));
      if (!accept(',')) break;
    }
    expect(end);
    return list;
  }
  OrderedJson object(int depth) {
    ++at_;
    OrderedJson object = OrderedJson::object();
    while (peek() != '}') {
      const OrderedJson key = value(depth + 1);
      expect(':');
      object[key.is_string() ? key.get<std::string>() : json_text(key)] = value(depth + 1);
      if (!accept(',')) break;
    }
    expect('}');
    return object;
  }
  OrderedJson number() {
    const size_t begin = at_;
    const auto is_part = [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == 'e' || c == 'E' || c == '-' ||
             c == '+';
    };
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    std::string_view number = text_.substr(begin, at_ - begin);
    if (number.starts_with('+')) number.remove_prefix(1);
    const char *first = number.data(), *last = first + number.size();
    int64_t integer = 0;
    if (const auto [end, error] = std::from_chars(first, last, integer); error == std::errc() && end == last)
      return integer;
    double real = 0;
    if (const auto [end, error] = std::from_chars(first, last, real); error == std::errc() && end == last) return real;
    throw NoCall{};
  }
  uint32_t hexadecimal(size_t digits) {
    const std::string_view word = text_.substr(at_, digits);
    uint32_t point = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), point, 16);
    if (word.size() < digits || error != std::errc() || end != word.data() + word.size()) throw NoCall{};
    at_ += digits;
    return point;
  }
  // The character of an escape with `digits` digits. Two surrogate halves, as JSON has them, are one character.
  uint32_t code_point(size_t digits) {
    uint32_t point = hexadecimal(digits);
    const auto is_half = [](uint32_t some, uint32_t first) { return some >= first && some < first + 0x400; };
    if (is_half(point, 0xd800) && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const uint32_t second = hexadecimal(4);
      if (!is_half(second, 0xdc00)) throw NoCall{};
      point = 0x10000 + ((point - 0xd800) << 10) + (second - 0xdc00);
    }
    if (point > 0x10ffff || is_half(point, 0xd800) || is_half(point, 0xdc00)) throw NoCall{};
    return point;
  }
  // Of one to three digits, the first of which was read.
  uint32_t octal(char first) {
    auto point = static_cast<uint32_t>(first - '0');
    for (int i = 1; i < 3 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i)
      point = point * 8 + static_cast<uint32_t>(text_[at_++] - '0');
    return point;
  }
  OrderedJson string() {
    const char quote = text_[at_++];
    std::string text;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] != '\\' || at_ + 1 == text_.size()) {
        text += text_[at_++];
        continue;
      }
      const char escaped = text_[at_ + 1];
      at_ += 2;
      switch (escaped) {
        case 'n':
          text += '\n';
          break;
        case 't':
          text += '\t';
          break;
        case 'r':
          text += '\r';
          break;
        case '\\':
        case '\'':
        case '"':
          text += escaped;
          break;
        case '\n':  // the line continues
          break;
        case 'x':
          append_utf8(text, code_point(2));
          break;
        case 'u':
          append_utf8(text, code_point(4));
          break;
        case 'U':
          append_utf8(text, code_point(8));
          break;
        case 'a':
        case 'b':
        case 'f':
        case 'v':
          text += escaped == 'a' ? '\a' : escaped == 'b' ? '\b' : escaped == 'f' ? '\f' : '\v';
          break;
        case '0':
        case '1':
        case '2':
        case '3':
        case '4':
        case '5':
        case '6':
        case '7':
          append_utf8(text, octal(escaped));
          break;
        default:  // as Python keeps what it does not know
          (text += '\\') += escaped;
      }
    }
    if (at_ == text_.size()) throw NoCall{};
    ++at_;
    return text;
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::vector<ToolCall> calls_of_json(const OrderedJson& json) {
  std::vector<ToolCall> calls;
  for (const OrderedJson& one : json.is_array() ? json : OrderedJson::array({json})) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string()) throw NoCall{};
    const char* key = one.contains("arguments") ? "arguments" : "parameters";
    const OrderedJson arguments = one.contains(key) ? one[key] : OrderedJson::object();
    if (!arguments.is_object()) throw NoCall{};
    calls.push_back({one["name"], json_text(arguments)});
  }
  if (calls.empty()) throw NoCall{};
  return calls;
}

}  // namespace

std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view text) {
  OrderedJson json;
  bool is_json = true;
  try {
    json = parse_ordered_json(text, "tool calls");
  } catch (const Error&) {
    is_json = false;
  }
  try {
    return is_json ? calls_of_json(json) : PythonReader(text).calls();
  } catch (const NoCall&) {
    return {};
  }
}

}  // namespace lfm2
