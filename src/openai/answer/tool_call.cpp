#include "openai/answer/tool_call.h"

#include <utility>

#include "openai/answer/python_literal.h"
#include "text/stream_decoder.h"

namespace lfm2 {

namespace {

ToolCall call_of_python(TextCursor& in, bool repairs) {
  const LiteralSyntax syntax{.repairs = repairs};
  ToolCall call{std::string(in.name()), {}};
  if (call.name.empty()) throw NoLiteral{};
  in.expect('(');
  ObjectBuilder arguments;
  while (in.peek() != ')') {
    if (in.rest().starts_with("**")) {
      in.skip(2);
      const OrderedJson more = read_literal(in, syntax, StringPlace::kArgument);
      if (!more.is_object()) throw NoLiteral{};
      for (const auto& [key, value] : more.items()) arguments.set(key, value);
    } else {
      std::string key(in.name());
      if (key.empty()) throw NoLiteral{};
      in.expect('=');
      arguments.set(std::move(key), read_literal(in, syntax, StringPlace::kArgument));
    }
    if (!in.accept(',')) break;
  }
  in.expect(')');
  call.arguments = json_text_with_digits(arguments.finish());
  return call;
}

// Arguments that are text are an object as text.
OrderedJson arguments_of(const OrderedJson& value, const LiteralSyntax& syntax) {
  if (value.is_null()) return OrderedJson::object();
  if (!value.is_string()) return value;
  TextCursor in(value.get_ref<const std::string&>());
  in.skip_blanks();
  if (in.at_end()) return OrderedJson::object();
  OrderedJson read = read_literal(in, syntax, StringPlace::kEntry);
  in.skip_blanks();
  if (!in.at_end()) throw NoLiteral{};
  return read.is_null() ? OrderedJson::object() : read;
}

ToolCall call_of_object(const OrderedJson& object, const LiteralSyntax& syntax) {
  if (const auto function = object.find("function"); function != object.end() && function->is_object())
    return call_of_object(*function, syntax);
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) throw NoLiteral{};
  const auto key = object.contains("arguments") ? object.find("arguments") : object.find("parameters");
  const OrderedJson arguments = key != object.end() ? arguments_of(*key, syntax) : OrderedJson::object();
  if (!arguments.is_object()) throw NoLiteral{};
  return {name->get<std::string>(), json_text_with_digits(arguments)};
}

// A call, or the beginning of one at the end of the text; `apart`: something stands between it and what is before it.
AfterCall call_or_other(TextCursor in, bool in_list, bool apart) {
  const char next = in.peek();
  const size_t begin = in.at();
  using Kind = AfterCall::Kind;
  if (next == '{') return {Kind::kCall, begin, in_list};
  if (!apart || in.name().empty()) return {Kind::kOther, begin, in_list};
  in.skip_blanks();
  if (in.at_end()) return {Kind::kOpen, begin, in_list};
  return {in.next() == '(' ? Kind::kCall : Kind::kOther, begin, in_list};
}

// At the beginning of a text, or between two lists or lines.
AfterCall outside_of_lists(TextCursor in, bool apart) {
  if (!in.accept('[')) return call_or_other(in, false, apart);
  in.skip_blanks();
  if (in.at_end()) return {AfterCall::Kind::kOpen, in.at(), true};
  return call_or_other(in, true, true);
}

}  // namespace

std::optional<ToolCallText> read_tool_call(std::string_view text, size_t at, bool repairs) try {
  TextCursor in(text, at);
  const LiteralSyntax json{.json = true, .repairs = repairs};
  ToolCall call = in.peek() == '{' ? call_of_object(read_literal(in, json, StringPlace::kElement), json)
                                   : call_of_python(in, repairs);
  call.name = utf8_text(call.name);
  return ToolCallText{std::move(call), in.at()};
} catch (const NoLiteral&) {
  return {};
}

AfterCall after_call(std::string_view text, size_t at, bool in_list) {
  TextCursor in(text, at);
  in.skip_blanks();
  if (in_list && in.accept(',')) {
    in.skip_blanks();
    if (in.at_end()) return {AfterCall::Kind::kOpen, in.at(), true};
    if (in.next() != ']') return call_or_other(in, true, true);
  }
  if (in_list && in.at_end()) return {AfterCall::Kind::kOpen, in.at(), true};
  if (in_list && !in.accept(']')) return {AfterCall::Kind::kOther, in.at(), true};
  const size_t end = in_list ? in.at() : at;
  const bool comma = in.accept(',');
  in.skip_blanks();
  if (in.at_end()) return {AfterCall::Kind::kEnd, in.at(), false};
  const bool line = text.substr(end, in.at() - end).find('\n') != std::string_view::npos;
  return outside_of_lists(in, comma || line);
}

AfterCall first_call(std::string_view text) { return outside_of_lists(TextCursor(text), true); }

}  // namespace lfm2
