#include "text/jinja/values/format.h"

#include <algorithm>

#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"

namespace lfm2::jinja {

namespace {

// What is on its way into `out` counts as made, so that it cannot outgrow the memory before it becomes a value.
void charge_growth(Heap& heap, const std::string& out, size_t before) {
  heap.charge(1);
  heap.charge_memory(out.size() - before);
  heap.charge_bytes(out.size() - before);
}

void append_items(Heap& heap, std::string& out, std::span<const Value> items, char open, char close) {
  heap.charge_memory(2 + 2 * items.size());
  out += open;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(heap, out, items[i]);
  }
  if (open == '(' && items.size() == 1) out += ',';
  out += close;
}

void append_range(std::string& out, const Range& range) {
  ((out += "range(") += integer_text(range.start) + ", ") += integer_text(range.stop);
  if (range.step != 1) (out += ", ") += integer_text(range.step);
  out += ')';
}

void append_dict(Heap& heap, std::string& out, const Dict& dict) {
  heap.charge_memory(4 * dict.entries.size());
  out += '{';
  bool first = true;
  for (const DictEntry& entry : dict.entries) {
    if (!std::exchange(first, false)) out += ", ";
    append_repr(heap, out, entry.key);
    out += ": ";
    append_repr(heap, out, entry.value);
  }
  out += '}';
}

}  // namespace

std::string integer_text(Integer value) { return fmt::format("{}", value); }

void append_repr(Heap& heap, std::string& out, const Value& value) {
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_text()) {
    const size_t before = out.size();
    if (value.is_markup()) out += "Markup(";
    append_repr(out, value.as_text());
    if (value.is_markup()) out += ')';
    charge_growth(heap, out, before);
  } else {
    append_str(heap, out, value);
  }
}

void append_str(Heap& heap, std::string& out, const Value& value) {
  const size_t before = out.size();
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      break;
    case Kind::kNone:
      out += "None";
      break;
    case Kind::kBoolean:
      out += value.as_boolean() ? "True" : "False";
      break;
    case Kind::kInteger:
      out += integer_text(value.as_integer());
      break;
    case Kind::kReal:
      append_real(out, value.as_real());
      break;
    case Kind::kDigits:
    case Kind::kText:
      out += value.as_text();
      break;
    case Kind::kRange:
      append_range(out, value.as<Range>());
      break;
    case Kind::kList:
      return append_items(heap, out, value.as<Items>().values, '[', ']');
    case Kind::kTuple:
      return append_items(heap, out, value.as<Items>().values, '(', ')');
    case Kind::kDict:
      return append_dict(heap, out, value.as<Dict>());
    case Kind::kView:
      (out += value.as<View>().type) += '(';
      append_items(heap, out, value.as<View>().items.values, '[', ']');
      out += ')';
      return;
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kFunction:
    case Kind::kLoop:
      heap.fail(fmt::format("a {} as text is not supported", type_name(value)));
  }
  charge_growth(heap, out, before);
}

Value str(Heap& heap, const Value& value) {
  if (value.is_text()) return value;
  std::string text;
  append_str(heap, text, value);
  return heap.text(text);
}

Value format_percent(Heap& heap, const Value& text, const Value& value) {
  if (text.is_markup()) heap.fail("'%' on text that is marked safe is not supported");
  const bool tuple = value.is(Kind::kTuple);
  const std::span<const Value> values = tuple ? value.as<Items>().values : std::span(&value, 1);
  const std::string_view form = text.as_text();
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < form.size(); ++at) {
    if (form[at] != '%') {
      out += form[at];
      continue;
    }
    const char conversion = ++at < form.size() ? form[at] : '\0';
    if (conversion == '%') {
      out += '%';
      continue;
    }
    if (conversion != 's' && conversion != 'd' && conversion != 'i' && conversion != 'r')
      heap.fail("'%' in a text with anything but %s, %r, %d, %i and %% is not supported");
    if (used == values.size()) heap.fail("not enough arguments for format string");
    const Value& argument = values[used++];
    if (conversion == 's') {
      append_str(heap, out, argument);
    } else if (conversion == 'r') {
      append_repr(heap, out, argument);
    } else {
      if (!argument.is_integral())
        refuse(heap, argument, fmt::format("%{} of a {} is not supported", conversion, type_name(argument)));
      out += integer_text(argument.as_integer());
    }
  }
  // Python accepts it unused where something could be looked up in it by name.
  const bool has_items =
      value.is(Kind::kDict) || value.is(Kind::kList) || value.is(Kind::kRange) || value.is_undefined();
  if (used < values.size() && !has_items) heap.fail("not all arguments converted during string formatting");
  return heap.text(out);
}

Value format_braces(Heap& heap, std::string_view text, const std::vector<Value>& positional,
                    const std::vector<std::pair<std::string_view, Value>>& keyword) {
  std::string out;
  size_t next = 0;
  const auto argument = [&](std::string_view name) -> const Value& {
    const bool number =
        !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (name.empty() || number) {
      const size_t index = name.empty() ? next++ : name.size() > 4 ? positional.size() : std::stoul(std::string(name));
      if (index >= positional.size()) heap.fail("format() names an argument that is not given");
      return positional[index];
    }
    for (const auto& [key, value] : keyword)
      if (key == name) return value;
    heap.fail("format() with anything but {}, {NUMBER} and {NAME} of a given argument is not supported");
  };
  bool counts = false, numbers = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool twice = at + 1 < text.size() && text[at + 1] == c;
    if ((c == '{' || c == '}') && twice) {
      out += c;
      ++at;
    } else if (c == '{') {
      const size_t end = text.find('}', at);
      if (end == std::string_view::npos) heap.fail("format(): '{' that nothing closes");
      const std::string_view name = text.substr(at + 1, end - at - 1);
      (name.empty() ? counts : numbers) |= name.empty() || (name[0] >= '0' && name[0] <= '9');
      if (counts && numbers) heap.fail("format() with {} and {NUMBER} in one text");
      append_str(heap, out, argument(name));
      at = end;
    } else if (c == '}') {
      heap.fail("format(): '}' that nothing opens");
    } else {
      out += c;
    }
  }
  return heap.text(out);
}

}  // namespace lfm2::jinja
