#include "openai/answer/quote_repair.h"

#include <algorithm>

#include "openai/answer/python_number.h"
#include "openai/answer/text_cursor.h"

namespace lfm2 {

namespace {

bool is_one_of(char c, std::string_view all) { return c != '\0' && all.find(c) != std::string_view::npos; }

bool argument_follows(TextCursor in) {
  if (in.peek() == ')' || in.rest().starts_with("**")) return true;
  return !in.name().empty() && in.accept('=') && in.next() != '=';
}

bool value_follows(TextCursor in) {
  const char first = in.peek();
  if (TextCursor::is_quote(first) || begins_number(first) || is_one_of(first, "[({])}")) return true;
  const std::string_view word = in.name();
  if (TextCursor::is_quote(in.next())) return word.size() <= 2;  // r'...' and the like
  constexpr std::string_view kWords[] = {"True", "False", "None", "true", "false", "null"};
  return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
}

// After the parenthesis of a call.
bool call_ended(TextCursor in) {
  const size_t begin = in.at();
  const char next = in.peek();
  return in.at_end() || next == ']' || next == ',' ||
         in.text().substr(begin, in.at() - begin).find('\n') != std::string_view::npos;
}

// After the bracket of a list or an object.
bool value_ended(TextCursor in) {
  const size_t begin = in.at();
  const char next = in.peek();
  return in.at_end() || is_one_of(next, ",)]}") ||
         in.text().substr(begin, in.at() - begin).find('\n') != std::string_view::npos;
}

// Whether each string that begins in the text ends in it.
bool strings_end(std::string_view text) {
  char open = '\0';
  for (size_t at = 0; at < text.size(); ++at) {
    if (open != '\0' && text[at] == '\\')
      ++at;
    else if (open == '\0' && TextCursor::is_quote(text[at]))
      open = text[at];
    else if (text[at] == open)
      open = '\0';
  }
  return open == '\0';
}

}  // namespace

bool may_end_string(std::string_view text, size_t after, StringPlace place) {
  TextCursor in(text, after);
  const char next = in.peek();
  in.skip(1);
  switch (place) {
    case StringPlace::kArgument:
      return (next == ')' && call_ended(in)) || (next == ',' && argument_follows(in));
    case StringPlace::kElement:
      return (is_one_of(next, "])}") && value_ended(in)) || (next == ',' && value_follows(in));
    case StringPlace::kKeyOrElement:
      return next == ':' || may_end_string(text, after, StringPlace::kElement);
    case StringPlace::kKey:
      return next == ':';
    case StringPlace::kEntry:
      return (next == '}' && value_ended(in)) || (next == ',' && value_follows(in));
  }
  return false;
}

bool is_operand(std::string_view text, size_t after) {
  TextCursor in(text, after);
  in.skip_blanks();
  const bool apart = in.at() > after;
  const std::string_view rest = in.rest();
  const size_t operators = std::min(rest.find_first_not_of("+-*/%|&^<>=!@"), rest.size());
  const auto blank_at = [&](size_t at) { return at < rest.size() && TextCursor::is_blank(rest[at]); };
  bool found = operators > 0 &&
               ((apart && blank_at(operators)) || (operators < rest.size() && TextCursor::is_quote(rest[operators])));
  for (const std::string_view word : {"if", "or", "and", "in", "not", "is", "else", "for"})
    found = found || (apart && rest.starts_with(word) && blank_at(word.size()));
  return found && strings_end(text.substr(after));
}

bool begins_argument(std::string_view text, size_t at) {
  const auto skip_blanks = [&] {
    while (at > 0 && TextCursor::is_blank(text[at - 1])) --at;
  };
  skip_blanks();
  if (at == 0 || text[at - 1] != '=') return false;
  --at;
  skip_blanks();
  const size_t end = at;
  while (at > 0 && is_call_name(text[at - 1])) --at;
  if (at == end) return false;
  skip_blanks();
  return at > 0 && text[at - 1] == ',';
}

}  // namespace lfm2
