// Comparison, containment, truth, lengths and items; arithmetic is in arithmetic.cpp.
#include "text/jinja/values/operators.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

// -1, 0 or 1 as the integer is less than, equal to or greater than the real, exactly; 2 where the real is not a number.
int compare_exactly(Integer integer, double real) {
  if (std::isnan(real)) return 2;
  constexpr double kLimit = 0x1p126;
  if (real >= kLimit) return -1;
  if (real <= -kLimit) return 1;
  const auto whole = static_cast<Integer>(real);
  if (integer != whole) return integer < whole ? -1 : 1;
  const double fraction = real - static_cast<double>(whole);
  return fraction > 0 ? -1 : fraction < 0 ? 1 : 0;
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral())
    return a.as_integer() < b.as_integer() ? -1 : a.as_integer() > b.as_integer() ? 1 : 0;
  if (a.is_integral()) return compare_exactly(a.as_integer(), b.as_real());
  if (b.is_integral()) {
    const int order = compare_exactly(b.as_integer(), a.as_real());
    return order == 2 ? 2 : -order;
  }
  const double x = a.as_real(), y = b.as_real();
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

// Values that Python compares by content; this interpreter refuses to compare them.
bool compares_by_content(const Value& value) {
  return value.is(Kind::kRange) || value.is(Kind::kView) || value.is(Kind::kMethod);
}

bool equal_items(Heap& heap, std::span<const Value> a, std::span<const Value> b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(heap, a[i], b[i])) return false;
  return true;
}

bool equal_dicts(Heap& heap, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const DictEntry& entry : a.entries) {
    const Value* other = find_in(heap, b, entry.key);
    if (other == nullptr || !equal(heap, entry.value, *other)) return false;
  }
  return true;
}

}  // namespace

void require_defined(const Heap& heap, const Value& value) {
  if (!value.is_undefined()) return;
  const Undefined& undefined = value.as<Undefined>();
  switch (undefined.why) {
    case Undefined::Why::kName:
      heap.fail(fmt::format("'{}' is undefined", undefined.name));
    case Undefined::Why::kAttribute:
      heap.fail(fmt::format("'{} object' has no attribute '{}'", undefined.type, undefined.name));
    case Undefined::Why::kElement:
      heap.fail(fmt::format("{} object has no element {}", undefined.type, undefined.name));
    case Undefined::Why::kParameter:
      heap.fail(fmt::format("parameter '{}' was not provided", undefined.name));
    case Undefined::Why::kOther:
      heap.fail(std::string(undefined.name));
  }
}

void refuse(const Heap& heap, const Value& value, const std::string& what) {
  require_defined(heap, value);
  heap.fail(what);
}

bool truth(const Value& value) {
  if (value.is_number()) return value.as_real() != 0;
  if (value.is_text()) return !value.as_text().empty();
  return length(value) != size_t{0} && !value.is_missing() && !value.is_none();
}

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.charge(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  if (a.is_text() || a.is(Kind::kDigits)) {
    if (a.as_text().size() != b.as_text().size()) return false;
    heap.charge_bytes(a.as_text().size());
    return a.as_text() == b.as_text();
  }
  if (a.is_sequence()) return equal_items(heap, a.as<Items>().values, b.as<Items>().values);
  if (a.is(Kind::kDict)) return equal_dicts(heap, a.as<Dict>(), b.as<Dict>());
  if (compares_by_content(a)) heap.fail(unsupported(fmt::format("comparing two values of the type {}", type_name(a))));
  if (a.is(Kind::kFunction)) return a.as_function() == b.as_function();
  return a.is_missing() || a.is_undefined() || a.is_none() || a.address() == b.address();
}

size_t hash(Heap& heap, const Value& value) {
  if (value.is_text() || value.is(Kind::kDigits)) {
    heap.charge_bytes(value.as_text().size());
    return std::hash<std::string_view>()(value.as_text());
  }
  if (value.is_integral()) return std::hash<int64_t>()(static_cast<int64_t>(value.as_integer()));
  if (value.is(Kind::kReal)) {
    // A real with an integer value is the same key as the integer.
    const double real = value.as_real();
    const bool whole = std::fabs(real) < 0x1p126 && real == std::trunc(real);
    return whole ? std::hash<int64_t>()(static_cast<int64_t>(static_cast<Integer>(real))) : std::hash<double>()(real);
  }
  if (value.is(Kind::kTuple)) {
    size_t mixed = 0x9e3779b97f4a7c15;
    for (const Value& item : value.as<Items>().values) {
      heap.charge(1);
      mixed = (mixed ^ hash(heap, item)) * 0x100000001b3;
    }
    return mixed;
  }
  if (value.is_none() || value.is_undefined()) return static_cast<size_t>(value.kind());
  if (value.is(Kind::kFunction)) return static_cast<size_t>(value.as_function());
  if (value.is_missing() || value.is(Kind::kList) || value.is(Kind::kDict))
    heap.fail(fmt::format("unhashable type: '{}'", type_name(value)));
  if (compares_by_content(value)) heap.fail(unsupported(fmt::format("a {} as a key", type_name(value))));
  return std::hash<const void*>()(value.address());
}

bool less(Heap& heap, const Value& a, const Value& b) {
  heap.charge(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_text() && b.is_text()) {
    heap.charge_bytes(std::min(a.as_text().size(), b.as_text().size()));
    return a.as_text() < b.as_text();  // the order of UTF-8 is that of characters
  }
  if (a.kind() == b.kind() && a.is_sequence()) {
    const auto x = a.as<Items>().values, y = b.as<Items>().values;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(heap, x[i], y[i])) return less(heap, x[i], y[i]);
    return x.size() < y.size();
  }
  require_defined(heap, a);
  require_defined(heap, b);
  heap.fail(fmt::format("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b)));
}

bool compare(Heap& heap, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return equal(heap, a, b);
    case Operator::kNotEqual:
      return !equal(heap, a, b);
    case Operator::kIn:
      return contains(heap, b, a);
    case Operator::kNotIn:
      return !contains(heap, b, a);
    case Operator::kLess:
      return less(heap, a, b);
    case Operator::kGreater:
      return less(heap, b, a);
    case Operator::kLessOrEqual:
    case Operator::kGreaterOrEqual: {
      const Value &low = op == Operator::kLessOrEqual ? a : b, &high = op == Operator::kLessOrEqual ? b : a;
      if (a.is_number() && b.is_number()) return compare_numbers(low, high) <= 0;
      return !less(heap, high, low);
    }
    case Operator::kAdd:
    case Operator::kSubtract:
    case Operator::kMultiply:
    case Operator::kModulo:
      break;
  }
  return false;
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  if (container.is(Kind::kDict)) return find_in(heap, container.as<Dict>(), item) != nullptr;
  if (container.is_text()) {
    if (!item.is_text())
      heap.fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    heap.charge_bytes(container.as_text().size());
    return find_text(container.as_text(), item.as_text()) != std::string_view::npos;
  }
  if (!is_iterable(container)) heap.fail(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  for (const Value& value : items_of(heap, container))
    if (equal(heap, value, item)) return true;
  return false;
}

std::optional<size_t> length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return static_cast<size_t>(characters_of(value.as_text()));
  if (value.is_sequence()) return value.as<Items>().values.size();
  if (value.is(Kind::kDict)) return value.as<Dict>().entries.size();
  if (value.is(Kind::kRange)) return value.as<Range>().count;
  if (value.is(Kind::kView)) return value.as<View>().items.values.size();
  return std::nullopt;
}

bool is_iterable(const Value& value) {
  return length(value).has_value() || value.is(Kind::kIterator) || value.is(Kind::kLoop);
}

std::span<const Value> items_of(Heap& heap, const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_sequence()) return value.as<Items>().values;
  if (value.is(Kind::kView)) return value.as<View>().items.values;
  if (value.is(Kind::kIterator)) {
    if (value.as<Iterator>().failure != nullptr) heap.fail_again(value.as<Iterator>().failure->as_text());
    return std::exchange(value.as<Iterator>().rest, {});
  }
  std::vector<Value> items;
  if (value.is(Kind::kDict)) {
    for (const DictEntry& entry : value.as<Dict>().entries) items.push_back(entry.key);
  } else if (value.is(Kind::kRange)) {
    const Range& range = value.as<Range>();
    for (size_t i = 0; i < range.count; ++i)
      items.push_back(Value::integer(range.start + range.step * static_cast<Integer>(i)));
  } else if (value.is_text()) {
    heap.charge_memory(value.as_text().size() * sizeof(Value));  // before they are there
    for (size_t at = 0; at < value.as_text().size();) {
      const size_t begin = at;
      next_character(value.as_text(), at);
      items.push_back(Value::text(value.as_text().substr(begin, at - begin)));
    }
  } else if (value.is(Kind::kLoop)) {
    heap.fail(unsupported("iterating over 'loop'"));
  } else {
    heap.fail(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  heap.charge(items.size() / 8);
  return heap.copy_array(std::span<const Value>(items));
}

Value escape(Heap& heap, const Value& value) {
  if (value.is_markup()) return value;
  const size_t longest = std::string_view("&quot;").size();
  heap.charge_bytes(value.as_text().size());
  heap.charge_memory(longest * value.as_text().size());  // before it is there
  std::string escaped;
  for (const char c : value.as_text()) {
    constexpr std::string_view kSpecial = "&<>'\"", kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (const size_t at = kSpecial.find(c); at != std::string_view::npos)
      escaped += kEscapes[at];
    else
      escaped += c;
  }
  return heap.text(escaped, true);
}

}  // namespace lfm2::jinja
