// Lengths and items of values.
#include <utility>
#include <vector>

#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

std::span<const Value> copied(Heap& heap, const std::vector<Value>& values) {
  heap.charge(values.size() / 8);
  return heap.copy_array(std::span<const Value>(values));
}

}  // namespace

std::optional<size_t> length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      return count_characters(value.as_text());
    case Kind::kList:
    case Kind::kTuple:
      return value.as<Items>().values.size();
    case Kind::kDict:
      return value.as<Dict>().entries.size();
    case Kind::kRange:
      return value.as<Range>().count;
    case Kind::kView:
      return value.as<View>().items.values.size();
    case Kind::kMissing:
    case Kind::kNone:
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kDigits:
    case Kind::kReal:
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kFunction:
    case Kind::kLoop:
      return std::nullopt;
  }
  return std::nullopt;
}

bool is_iterable(const Value& value) {
  return length(value).has_value() || value.is(Kind::kIterator) || value.is(Kind::kLoop);
}

std::span<const Value> items_of(Heap& heap, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kList:
    case Kind::kTuple:
      return value.as<Items>().values;
    case Kind::kView:
      return value.as<View>().items.values;
    case Kind::kIterator:
      if (value.as<Iterator>().failure != nullptr) heap.fail_again(value.as<Iterator>().failure->as_text());
      return std::exchange(value.as<Iterator>().rest, {});
    case Kind::kDict:
      for (const DictEntry& entry : value.as<Dict>().entries) items.push_back(entry.key);
      return copied(heap, items);
    case Kind::kRange: {
      const Range& range = value.as<Range>();
      for (size_t i = 0; i < range.count; ++i)
        items.push_back(Value::integer(range.start + range.step * static_cast<Integer>(i)));
      return copied(heap, items);
    }
    case Kind::kText:
      heap.charge_memory(value.as_text().size() * sizeof(Value));  // before they are there
      for (size_t at = 0; at < value.as_text().size();) {
        const size_t begin = at;
        next_character(value.as_text(), at);
        items.push_back(Value::text(value.as_text().substr(begin, at - begin)));
      }
      return copied(heap, items);
    case Kind::kLoop:
      heap.fail(unsupported("iterating over 'loop'"));
    case Kind::kMissing:
    case Kind::kNone:
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kDigits:
    case Kind::kReal:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kFunction:
      heap.fail(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  return {};
}

}  // namespace lfm2::jinja
