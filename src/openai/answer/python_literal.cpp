#include "openai/answer/python_literal.h"

#include <string>
#include <utility>

#include "openai/answer/python_number.h"

namespace lfm2 {

namespace {

constexpr int kMaxDepth = 64;

class LiteralReader {
 public:
  LiteralReader(TextCursor& in, const LiteralSyntax& syntax) : in_(in), syntax_(syntax) {}

  OrderedJson value(StringPlace place, int depth = 0) {
    if (depth > kMaxDepth) throw NoLiteral{};
    const char first = in_.peek();
    if (begins_string(in_)) return read_string(in_, syntax_, place);
    if (begins_number(first)) return read_number(in_);
    if (first == '[') return list(depth);
    if (first == '(') return tuple(depth);
    if (first == '{') return object_or_set(depth);
    const std::string_view word = in_.name();
    if (word == "True" || word == "true") return true;
    if (word == "False" || word == "false") return false;
    if (word == "None" || word == "null") return nullptr;
    throw NoLiteral{};
  }

 private:
  OrderedJson list(int depth) {
    in_.skip(1);
    OrderedJson list = OrderedJson::array();
    while (in_.peek() != ']') {
      list.push_back(value(StringPlace::kElement, depth + 1));
      if (!in_.accept(',')) break;
    }
    in_.expect(']');
    return list;
  }
  // One value in parentheses is that value.
  OrderedJson tuple(int depth) {
    in_.skip(1);
    OrderedJson list = OrderedJson::array();
    bool comma = false;
    while (in_.peek() != ')') {
      list.push_back(value(StringPlace::kElement, depth + 1));
      comma = in_.accept(',');
      if (!comma) break;
    }
    in_.expect(')');
    if (list.size() == 1 && !comma) return std::move(list.front());
    return list;
  }
  // Both begin with a brace and a value.
  OrderedJson object_or_set(int depth) {
    in_.skip(1);
    if (in_.accept('}')) return OrderedJson::object();
    OrderedJson first = value(StringPlace::kKeyOrElement, depth + 1);
    return in_.peek() == ':' ? object(std::move(first), depth) : set(std::move(first), depth);
  }
  OrderedJson object(OrderedJson key, int depth) {
    ObjectBuilder object;
    for (;;) {
      in_.expect(':');
      object.set(key.is_string() ? key.get<std::string>() : json_text_with_digits(key),
                 value(StringPlace::kEntry, depth + 1));
      if (!in_.accept(',') || in_.peek() == '}') break;
      key = value(StringPlace::kKey, depth + 1);
    }
    in_.expect('}');
    return object.finish();
  }
  OrderedJson set(OrderedJson first, int depth) {
    OrderedJson list = OrderedJson::array({std::move(first)});
    while (in_.accept(',') && in_.peek() != '}') list.push_back(value(StringPlace::kElement, depth + 1));
    in_.expect('}');
    return list;
  }

  TextCursor& in_;
  const LiteralSyntax syntax_;
};

}  // namespace

OrderedJson read_literal(TextCursor& in, const LiteralSyntax& syntax, StringPlace place) {
  return LiteralReader(in, syntax).value(place);
}

}  // namespace lfm2
