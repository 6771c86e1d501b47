// Jinja's tests: `value is NAME`.
#include "text/jinja/builtins/filters.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"

namespace lfm2::jinja {

namespace {

template <Kind kKind>
bool is_kind(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "a test", arguments, {});
  return value.is(kKind);
}

bool is_defined(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "defined", arguments, {});
  return !value.is_undefined();
}

template <bool kValue>
bool is_the_boolean(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "true and false", arguments, {});
  return value.is(Kind::kBoolean) && value.as_boolean() == kValue;
}

bool is_number(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "number", arguments, {});
  return value.is_number() || value.is(Kind::kDigits);
}

bool is_integer(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "integer", arguments, {});
  return value.is(Kind::kInteger) || value.is(Kind::kDigits);
}

bool is_sequence(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "sequence", arguments, {});
  return length(value).has_value() && !value.is(Kind::kView);
}

bool is_iterable_test(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "iterable", arguments, {});
  return is_iterable(value);
}

bool is_callable(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "callable", arguments, {});
  return value.is(Kind::kMacro) || value.is(Kind::kMethod) || value.is(Kind::kFunction) || value.is(Kind::kLoop) ||
         value.is_undefined();
}

bool is_escaped(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "escaped", arguments, {});
  return value.is_markup();
}

bool has_remainder(Heap& heap, const Value& value, const Value& divisor, Integer remainder) {
  return equal(heap, arithmetic(heap, Operator::kModulo, value, divisor), Value::integer(remainder));
}
bool is_odd(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "odd", arguments, {});
  return has_remainder(heap, value, Value::integer(2), 1);
}
bool is_even(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "even", arguments, {});
  return has_remainder(heap, value, Value::integer(2), 0);
}
bool is_divisible(Heap& heap, const Value& value, const Arguments& arguments) {
  return has_remainder(heap, value, bind(heap, "divisibleby", arguments, {"num"}, 1)[0], 0);
}

template <Operator kOperator>
bool compares(Heap& heap, const Value& value, const Arguments& arguments) {
  return compare(heap, kOperator, value, bind(heap, "a comparing test", arguments, {"other"}, 1)[0]);
}

bool is_same(Heap& heap, const Value& value, const Arguments& arguments) {
  const Value other = bind(heap, "sameas", arguments, {"other"}, 1)[0];
  if (value.kind() != other.kind()) return false;
  if (value.is_none() || value.is(Kind::kBoolean)) return value.as_integer() == other.as_integer();
  heap.fail("sameas of anything but none, true and false is not supported");
}

template <bool kUpper>
bool is_case(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "upper and lower", arguments, {});
  const Value text = str(heap, value);
  heap.charge_bytes(text.as_text().size());
  if (!is_ascii(text.as_text())) heap.fail("upper and lower of text beyond ASCII are not supported");
  bool cased = false;
  for (const char c : text.as_text()) {
    const bool upper_letter = c >= 'A' && c <= 'Z', lower_letter = c >= 'a' && c <= 'z';
    if (kUpper ? lower_letter : upper_letter) return false;
    cased |= upper_letter || lower_letter;
  }
  return cased;
}

bool is_filter(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "filter", arguments, {});
  hash(heap, value);  // refuses what cannot be a name
  return value.is_text() && find_filter(value.as_text()) != nullptr;
}

bool is_test(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "test", arguments, {});
  hash(heap, value);
  return value.is_text() && find_test(value.as_text()) != nullptr;
}

constexpr Named<Test> kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<Kind::kUndefined>},
    {"none", is_kind<Kind::kNone>},
    {"boolean", is_kind<Kind::kBoolean>},
    {"true", is_the_boolean<true>},
    {"false", is_the_boolean<false>},
    {"integer", is_integer},
    {"float", is_kind<Kind::kReal>},
    {"number", is_number},
    {"string", is_kind<Kind::kText>},
    {"mapping", is_kind<Kind::kDict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable_test},
    {"callable", is_callable},
    {"escaped", is_escaped},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"lower", is_case<false>},
    {"upper", is_case<true>},
    {"sameas", is_same},
    {"filter", is_filter},
    {"test", is_test},
    {"in", compares<Operator::kIn>},
    {"==", compares<Operator::kEqual>},
    {"eq", compares<Operator::kEqual>},
    {"equalto", compares<Operator::kEqual>},
    {"!=", compares<Operator::kNotEqual>},
    {"ne", compares<Operator::kNotEqual>},
    {">", compares<Operator::kGreater>},
    {"gt", compares<Operator::kGreater>},
    {"greaterthan", compares<Operator::kGreater>},
    {">=", compares<Operator::kGreaterOrEqual>},
    {"ge", compares<Operator::kGreaterOrEqual>},
    {"<", compares<Operator::kLess>},
    {"lt", compares<Operator::kLess>},
    {"lessthan", compares<Operator::kLess>},
    {"<=", compares<Operator::kLessOrEqual>},
    {"le", compares<Operator::kLessOrEqual>},
};

}  // namespace

const Named<Test>* find_test(std::string_view name) { return find_named(kTests, name); }

}  // namespace lfm2::jinja
