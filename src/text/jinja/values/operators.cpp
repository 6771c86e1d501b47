// Comparison, containment and truth; the rest is in arithmetic.cpp and iteration.cpp.
#include "text/jinja/values/operators.h"

#include <algorithm>
#include <cmath>
#include <functional>

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
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBoolean:
    case Kind::kInteger:
      return value.as_integer() != 0;
    case Kind::kReal:
      return value.as_real() != 0;
    case Kind::kText:
      return !value.as_text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
      return length(value) != size_t{0};
    case Kind::kDigits:
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kFunction:
    case Kind::kLoop:
      return true;
  }
  return false;
}

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.charge(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kDigits:
    case Kind::kText:
      if (a.as_text().size() != b.as_text().size()) return false;
      heap.charge_bytes(a.as_text().size());
      return a.as_text() == b.as_text();
    case Kind::kList:
    case Kind::kTuple:
      return equal_items(heap, a.as<Items>().values, b.as<Items>().values);
    case Kind::kDict:
      return equal_dicts(heap, a.as<Dict>(), b.as<Dict>());
    case Kind::kRange:
    case Kind::kView:
    case Kind::kMethod:
      heap.fail(unsupported(fmt::format("comparing two values of the type {}", type_name(a))));
    case Kind::kFunction:
      return a.as_function() == b.as_function();
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kReal:  // numbers are above
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kLoop:
      return a.address() == b.address();
  }
  return false;
}

size_t hash(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kDigits:
    case Kind::kText:
      heap.charge_bytes(value.as_text().size());
      return std::hash<std::string_view>()(value.as_text());
    case Kind::kReal:
      // A real that is whole is the same key as the integer.
      if (std::fabs(value.as_real()) < 0x1p126 && value.as_real() == std::trunc(value.as_real()))
        return std::hash<int64_t>()(static_cast<int64_t>(static_cast<Integer>(value.as_real())));
      return std::hash<double>()(value.as_real());
    case Kind::kBoolean:
    case Kind::kInteger:
      return std::hash<int64_t>()(static_cast<int64_t>(value.as_integer()));
    case Kind::kTuple: {
      size_t mixed = 0x9e3779b97f4a7c15;
      for (const Value& item : value.as<Items>().values) {
        heap.charge(1);
        mixed = (mixed ^ hash(heap, item)) * 0x100000001b3;
      }
      return mixed;
    }
    case Kind::kNone:
    case Kind::kUndefined:
      return static_cast<size_t>(value.kind());
    case Kind::kFunction:
      return static_cast<size_t>(value.as_function());
    case Kind::kIterator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kLoop:
      return std::hash<const void*>()(value.address());
    case Kind::kMissing:
    case Kind::kList:
    case Kind::kDict:
      heap.fail(fmt::format("unhashable type: '{}'", type_name(value)));
    case Kind::kRange:
    case Kind::kView:
    case Kind::kMethod:
      heap.fail(unsupported(fmt::format("a {} as a key", type_name(value))));
  }
  return 0;
}

bool less(Heap& heap, const Value& a, const Value& b) {
  heap.charge(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_text() && b.is_text()) {
    heap.charge_bytes(std::min(a.as_text().size(), b.as_text().size()));
    return a.as_text() < b.as_text();  // the order of UTF-8 is that of characters
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
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

Value escape(Heap& heap, const Value& value) {
  if (value.is_markup()) return value;
  const size_t longest = std::string_view("&quot;").size();
  heap.charge_bytes(value.as_text().size());
  heap.charge_memory(longest * value.as_text().size());  // before it is there
  std::string escaped;
  for (const char c : value.as_text()) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      default:
        escaped += c;
    }
  }
  return heap.text(escaped, true);
}

}  // namespace lfm2::jinja
