// The results of `value.name`, `value[key]` and `value[a:b]` in Jinja's sandbox.

#include <algorithm>
#include <iterator>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

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

// Missing if Python and Jinja do not have such an attribute either.
Value refused(Heap& heap, Naming naming, std::string_view name) {
  if (is_unsupported(naming, name)) heap.fail(unsupported(naming, name));
  return {};
}

Value loop_attribute(Heap& heap, Loop& loop, std::string_view name) {
  if (loop.source == nullptr) heap.fail(unsupported("'loop' after the end of its loop"));
  const auto number = [](size_t value) { return Value::integer(static_cast<Integer>(value)); };
  if (name == "index0") return number(loop.index0);
  if (name == "index") return number(loop.index0 + 1);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!loop.look_ahead());
  if (name == "length")
    return number(loop.index0 + 1 + (loop.after.is_missing() ? 0 : 1) + (loop.ended ? 0 : loop.source->rest()));
  if (name == "previtem")
    return loop.index0 == 0 ? heap.undefined(Undefined::Why::kOther, "there is no previous item") : loop.before;
  if (name == "nextitem")
    return loop.look_ahead() ? loop.after : heap.undefined(Undefined::Why::kOther, "there is no next item");
  return refused(heap, Naming::kLoopAttribute, name);
}

// The result of Python's getattr; missing if there is no such attribute.
Value own_attribute(Heap& heap, const Value& value, std::string_view name) {
  if (name.starts_with("__")) heap.fail(unsupported(fmt::format("the attribute '{}'", name)));
  const auto method = [&](const Named<Call>* found, Naming naming) -> Value {
    if (found != nullptr) return Value::object(Kind::kMethod, heap.make<Method>(value, found));
    return refused(heap, naming, name);
  };
  if (value.is_text()) {
    if (value.is_markup()) heap.fail(unsupported("a method of text that is marked safe"));
    return method(find_text_method(name), Naming::kTextMethod);
  }
  if (value.is(Kind::kDict))
    return has(kChangesDict, name) ? unsafe(heap, value, name) : method(find_dict_method(name), Naming::kDictMethod);
  if (value.is(Kind::kList) && has(kChangesList, name)) return unsafe(heap, value, name);
  if (value.is_sequence())
    return value.is(Kind::kTuple) && name == "copy" ? Value() : refused(heap, Naming::kListMethod, name);
  if (value.is(Kind::kNamespace)) {
    const Value* found = find_in(heap, value.as<Namespace>(), name);
    return found == nullptr ? Value() : *found;
  }
  if (value.is(Kind::kLoop)) return loop_attribute(heap, value.as<Loop>(), name);
  if (value.is(Kind::kMacro) || value.is(Kind::kIterator)) {
    if (name.starts_with('_')) heap.fail(unsupported(fmt::format("the attribute '{}'", name)));
    return refused(heap, Naming::kCallAttribute, name);
  }
  require_defined(heap, value);
  if (value.is(Kind::kMethod) || value.is(Kind::kFunction) || value.is_none() || value.is_missing()) return {};
  return refused(heap, Naming::kOtherAttribute, name);
}

// Python's obj[key]; missing if that raises TypeError, KeyError or IndexError.
Value own_item(Heap& heap, const Value& value, const Value& key) {
  if (value.is_undefined()) require_defined(heap, value);
  if (value.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return {};
    const Value* found = find_in(heap, value.as<Dict>(), key);
    return found == nullptr ? Value() : *found;
  }
  if (!key.is_integral()) return {};
  if (!value.is_sequence() && !value.is(Kind::kRange) && !value.is_text()) return {};
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
  size_t first, count;
};

// The indices of a slice of `length` items, by Python's rules.
Bounds slice_bounds(Heap& heap, size_t length, const Value& start, const Value& stop) {
  const auto count = static_cast<Integer>(length);
  const auto clamped = [&](const Value& value, Integer otherwise) {
    if (value.is_missing() || value.is_none()) return otherwise;
    if (!value.is_integral()) refuse(heap, value, unsupported("a slice with anything but integers and none"));
    return std::clamp(value.as_integer() < 0 ? value.as_integer() + count : value.as_integer(), Integer{0}, count);
  };
  const Integer first = clamped(start, 0), end = clamped(stop, count);
  return {static_cast<size_t>(first), static_cast<size_t>(std::max(end - first, Integer{0}))};
}

// value[::-1]
Value reversed(Heap& heap, const Value& value) {
  const auto items = items_of(heap, value);
  heap.charge(items.size() / 8);
  const std::vector<Value> backward(items.rbegin(), items.rend());
  if (!value.is_text()) return heap.sequence(value.kind(), backward);
  std::string text;
  for (const Value& character : backward) text += character.as_text();
  return heap.text(text, value.is_markup());
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
  if (!value.is_sequence() && !value.is_text())
    refuse(heap, value, unsupported(fmt::format("a slice of a {}", type_name(value))));
  const bool whole = start.is_missing() && stop.is_missing();
  if (whole && step.is_integral() && step.as_integer() == -1) return reversed(heap, value);
  if (!step.is_missing()) heap.fail(unsupported("a slice with a step other than [::-1]"));
  if (value.is_text()) heap.charge_bytes(3 * value.as_text().size());
  const Bounds bounds = slice_bounds(heap, *length(value), start, stop);
  if (!value.is_text())
    return heap.sequence(value.kind(), value.as<Items>().values.subspan(bounds.first, bounds.count));
  const std::string_view rest = value.as_text().substr(byte_of_character(value.as_text(), bounds.first));
  return Value::text(rest.substr(0, byte_of_character(rest, bounds.count)), value.is_markup());
}

}  // namespace lfm2::jinja
