#include "text/jinja/values/format.h"

#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

// Text appended to `out` is charged at once, so that it cannot exceed the memory limit before it becomes a value.
void charge_growth(Heap& heap, const std::string& out, size_t before) {
  heap.charge(1);
  heap.charge_memory(out.size() - before);
  heap.charge_bytes(out.size() - before);
}

void append_items(Heap& heap, std::string& out, const Value& value) {
  const auto items = value.as<Items>().values;
  heap.charge_memory(2 + 2 * items.size());
  out += value.is(Kind::kList) ? '[' : '(';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(heap, out, items[i]);
  }
  if (value.is(Kind::kTuple) && items.size() == 1) out += ',';
  out += value.is(Kind::kList) ? ']' : ')';
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

const char* type_name(const Value& value) {
  // In the order of Kind.
  constexpr const char* kNames[] = {"missing",
                                    "Undefined",
                                    "NoneType",
                                    "bool",
                                    "int",
                                    "int of more than 64 bits",
                                    "float",
                                    "str",
                                    "list",
                                    "tuple",
                                    "dict",
                                    "range",
                                    "view",
                                    "generator",
                                    "Namespace",
                                    "Macro",
                                    "builtin_function_or_method",
                                    "function",
                                    "LoopContext"};
  if (value.is_markup()) return "Markup";
  return value.is(Kind::kView) ? value.as<View>().type : kNames[static_cast<size_t>(value.kind())];
}

std::string integer_text(Integer value) { return fmt::format("{}", value); }

void append_repr(Heap& heap, std::string& out, const Value& value) {
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_text()) {
    const size_t before = out.size();
    if (value.is_markup()) heap.fail(unsupported("the repr() of text that is marked safe"));
    append_repr(out, value.as_text());
    charge_growth(heap, out, before);
  } else {
    append_str(heap, out, value);
  }
}

void append_str(Heap& heap, std::string& out, const Value& value) {
  const size_t before = out.size();
  if (value.is_sequence()) return append_items(heap, out, value);
  if (value.is(Kind::kDict)) return append_dict(heap, out, value.as<Dict>());
  if (value.is_none())
    out += "None";
  else if (value.is(Kind::kBoolean))
    out += value.as_boolean() ? "True" : "False";
  else if (value.is(Kind::kInteger))
    out += integer_text(value.as_integer());
  else if (value.is(Kind::kReal))
    append_real(out, value.as_real());
  else if (value.is_text() || value.is(Kind::kDigits))
    out += value.as_text();
  else if (!value.is_missing() && !value.is_undefined())
    heap.fail(unsupported(fmt::format("a {} as text", type_name(value))));
  charge_growth(heap, out, before);
}

Value str(Heap& heap, const Value& value) {
  if (value.is_text()) return value;
  std::string text;
  append_str(heap, text, value);
  return heap.text(text);
}

}  // namespace lfm2::jinja
