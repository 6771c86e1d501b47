#include "text/jinja/values/format.h"

#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

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
    if (value.is_markup()) heap.fail(unsupported("the repr() of text that is marked safe"));
    append_repr(out, value.as_text());
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
    case Kind::kList:
      return append_items(heap, out, value.as<Items>().values, '[', ']');
    case Kind::kTuple:
      return append_items(heap, out, value.as<Items>().values, '(', ')');
    case Kind::kDict:
      return append_dict(heap, out, value.as<Dict>());
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kFunction:
    case Kind::kLoop:
      heap.fail(unsupported(fmt::format("a {} as text", type_name(value))));
  }
  charge_growth(heap, out, before);
}

Value str(Heap& heap, const Value& value) {
  if (value.is_text()) return value;
  std::string text;
  append_str(heap, text, value);
  return heap.text(text);
}

}  // namespace lfm2::jinja
