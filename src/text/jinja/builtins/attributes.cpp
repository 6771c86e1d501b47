#include "text/jinja/builtins/attributes.h"

#include <algorithm>
#include <iterator>

#include "text/jinja/builtins/methods.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"

namespace lfm2::jinja {

namespace {

// Attributes that numbers, ranges and views have in Python, and that are not supported here.
constexpr std::string_view kOtherAttributes[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "count",      "denominator", "from_bytes",
    "fromhex",          "hex",       "imag",       "index",     "is_integer", "isdisjoint",  "mapping",
    "numerator",        "real",      "start",      "step",      "stop",       "to_bytes"};

// Those of macros and generators.
constexpr std::string_view kCallAttributes[] = {
    "name", "arguments", "catch_kwargs", "catch_varargs", "caller",     "explicit_caller", "close",
    "send", "throw",     "gi_code",      "gi_frame",      "gi_running", "gi_suspended",    "gi_yieldfrom"};

constexpr std::string_view kChangesList[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
constexpr std::string_view kChangesDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <size_t kCount>
bool has(const std::string_view (&names)[kCount], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value unsafe(Heap& heap, const Value& value, std::string_view name) {
  const Value message =
      heap.text(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)));
  return heap.undefined(Undefined::Why::kOther, message.as_text());
}

size_t loop_length(Loop& loop) {
  return loop.index0 + 1 + (loop.after.is_missing() ? 0 : 1) + (loop.ended ? 0 : loop.source->rest());
}

Value loop_attribute(Heap& heap, Loop& loop, std::string_view name) {
  if (loop.source == nullptr) heap.fail("'loop' behind the end of its loop is not supported");
  const auto number = [](size_t value) { return Value::integer(static_cast<Integer>(value)); };
  if (name == "index0") return number(loop.index0);
  if (name == "index") return number(loop.index0 + 1);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!loop.look_ahead());
  if (name == "length") return number(loop_length(loop));
  if (name == "revindex") return number(loop_length(loop) - loop.index0);
  if (name == "revindex0") return number(loop_length(loop) - loop.index0 - 1);
  if (name == "depth") return number(1);
  if (name == "depth0") return number(0);
  if (name == "previtem")
    return loop.index0 == 0 ? heap.undefined(Undefined::Why::kOther, "there is no previous item") : loop.before;
  if (name == "nextitem")
    return loop.look_ahead() ? loop.after : heap.undefined(Undefined::Why::kOther, "there is no next item");
  if (name == "cycle" || name == "changed") heap.fail(fmt::format("loop.{} is not supported", name));
  return {};
}

// What Python's getattr gives: missing where there is no such attribute.
Value own_attribute(Heap& heap, const Value& value, std::string_view name) {
  if (name.starts_with("__")) heap.fail(fmt::format("attribute '{}' is not supported", name));
  const auto method = [&](const Named<Call>* found) -> Value {
    if (found == nullptr) return {};
    if (found->call == nullptr) heap.fail(fmt::format("method '{}' of {} is not supported", name, type_name(value)));
    return Value::object(Kind::kMethod, heap.make<Method>(value, found));
  };
  switch (value.kind()) {
    case Kind::kText:
      if (value.is_markup()) heap.fail("methods of text that is marked safe are not supported");
      return method(find_text_method(name));
    case Kind::kDict:
      return has(kChangesDict, name) ? unsafe(heap, value, name) : method(find_dict_method(name));
    case Kind::kList:
      if (has(kChangesList, name)) return unsafe(heap, value, name);
      return method(find_list_method(name));
    case Kind::kTuple:
      return name == "copy" ? Value() : method(find_list_method(name));
    case Kind::kNamespace: {
      const Value* found = find_in(heap, value.as<Namespace>(), name);
      return found == nullptr ? Value() : *found;
    }
    case Kind::kLoop:
      return loop_attribute(heap, value.as<Loop>(), name);
    case Kind::kMacro:
    case Kind::kIterator:
      if (has(kCallAttributes, name) || name.starts_with('_'))
        heap.fail(fmt::format("attribute '{}' of a {} is not supported", name, type_name(value)));
      return {};
    case Kind::kMethod:
    case Kind::kFunction:
      return {};
    case Kind::kMissing:
    case Kind::kUndefined:
      require_defined(heap, value);
      return {};
    case Kind::kNone:
      return {};
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kDigits:
    case Kind::kReal:
    case Kind::kRange:
    case Kind::kView:
      if (has(kOtherAttributes, name))
        heap.fail(fmt::format("attribute '{}' of {} is not supported", name, type_name(value)));
      return {};
  }
  return {};
}

// Python's obj[key]: missing where it raises TypeError, KeyError or IndexError.
Value own_item(Heap& heap, const Value& value, const Value& key) {
  if (value.is_undefined()) require_defined(heap, value);
  if (value.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return {};
    const Value* found = find_in(heap, value.as<Dict>(), key);
    return found == nullptr ? Value() : *found;
  }
  if (!key.is_integral()) return {};
  const bool sequence = value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange) || value.is_text();
  if (!sequence) return {};
  if (value.is_text()) heap.charge_bytes(2 * value.as_text().size());
  const auto count = static_cast<Integer>(*length(value));
  const Integer index = key.as_integer() < 0 ? key.as_integer() + count : key.as_integer();
  if (index < 0 || index >= count) return {};
  const auto at = static_cast<size_t>(index);
  if (value.is(Kind::kRange)) return Value::integer(value.as<Range>().start + value.as<Range>().step * index);
  if (!value.is_text()) return value.as<Items>().values[at];
  const size_t begin = byte_of_character(value.as_text(), at);
  size_t end = begin;
  next_character(value.as_text(), end);
  return Value::text(value.as_text().substr(begin, end - begin), value.is_markup());
}

struct Bounds {
  Integer start, step;
  size_t count;
};

// The indices of a slice of `length` items, by Python's rules.
Bounds slice_bounds(Heap& heap, size_t length, const Value& start, const Value& stop, const Value& step) {
  const auto given = [&](const Value& value) {
    if (value.is_missing() || value.is_none()) return false;
    if (!value.is_integral()) refuse(heap, value, "a slice with anything but integers and none is not supported");
    return true;
  };
  const auto count = static_cast<Integer>(length);
  const Integer stride = given(step) ? step.as_integer() : 1;
  if (stride == 0) heap.fail("slice step cannot be zero");
  const Integer lowest = stride < 0 ? -1 : 0, highest = stride < 0 ? count - 1 : count;
  const auto clamped = [&](const Value& value, Integer otherwise) {
    if (!given(value)) return otherwise;
    const Integer index = value.as_integer() < 0 ? value.as_integer() + count : value.as_integer();
    return std::clamp(index, lowest, highest);
  };
  const Integer first = clamped(start, stride < 0 ? highest : lowest),
                end = clamped(stop, stride < 0 ? lowest : highest);
  const Integer distance = stride < 0 ? first - end : end - first;
  const Integer width = stride < 0 ? -(stride + 1) + 1 : stride;
  return {first, stride, distance <= 0 ? 0 : static_cast<size_t>((distance - 1) / width + 1)};
}

Value text_slice(Heap& heap, const Value& value, const Bounds& bounds) {
  const std::string_view text = value.as_text();
  if (bounds.count == 0) return Value::text({}, value.is_markup());
  if (bounds.step == 1) {
    const size_t begin = byte_of_character(text, static_cast<size_t>(bounds.start));
    const std::string_view rest = text.substr(begin);
    return Value::text(rest.substr(0, byte_of_character(rest, bounds.count)), value.is_markup());
  }
  const auto characters = items_of(heap, value);
  std::string out;
  for (size_t i = 0; i < bounds.count; ++i)
    out += characters[static_cast<size_t>(bounds.start + bounds.step * static_cast<Integer>(i))].as_text();
  return heap.text(out, value.is_markup());
}

}  // namespace

Value* find_in(Heap& heap, Namespace& space, std::string_view name) {
  heap.charge(space.entries.size() / 16);
  for (NamespaceEntry& entry : space.entries)
    if (entry.name == name) return &entry.value;
  return nullptr;
}

Value get_attribute(Heap& heap, const Value& value, std::string_view name) {
  Value found = own_attribute(heap, value, name);
  if (found.is_missing()) found = own_item(heap, value, Value::text(name));
  return found.is_missing() ? heap.undefined(Undefined::Why::kAttribute, name, type_name(value)) : found;
}

Value get_item(Heap& heap, const Value& value, const Value& key) {
  Value found = own_item(heap, value, key);
  if (found.is_missing() && key.is_text()) found = own_attribute(heap, value, key.as_text());
  if (!found.is_missing()) return found;
  if (key.is_text()) return heap.undefined(Undefined::Why::kAttribute, key.as_text(), type_name(value));
  if (!key.is_integral()) return heap.undefined(Undefined::Why::kElement, "of this kind", type_name(value));
  return heap.undefined(Undefined::Why::kElement, heap.text(integer_text(key.as_integer())).as_text(),
                        type_name(value));
}

Value get_slice(Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step) {
  const bool sequence = value.is(Kind::kList) || value.is(Kind::kTuple) || value.is_text();
  if (!sequence) refuse(heap, value, fmt::format("a slice of a {} is not supported", type_name(value)));
  if (value.is_text()) heap.charge_bytes(3 * value.as_text().size());
  const Bounds bounds = slice_bounds(heap, *length(value), start, stop, step);
  if (value.is_text()) return text_slice(heap, value, bounds);
  heap.charge(bounds.count / 8);
  std::vector<Value> items;
  for (size_t i = 0; i < bounds.count; ++i)
    items.push_back(
        value.as<Items>().values[static_cast<size_t>(bounds.start + bounds.step * static_cast<Integer>(i))]);
  return heap.sequence(value.kind(), items);
}

}  // namespace lfm2::jinja
