// Jinja's tests: `value is NAME`.
#include "text/jinja/builtins/filters.h"
#include "text/jinja/values/operators.h"

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

bool is_sequence(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "sequence", arguments, {});
  return length(value).has_value() && !value.is(Kind::kView);
}

bool is_iterable_test(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, "iterable", arguments, {});
  return is_iterable(value);
}

template <Operator kOperator>
bool compares(Heap& heap, const Value& value, const Arguments& arguments) {
  return compare(heap, kOperator, value, bind(heap, "a comparing test", arguments, {"other"}, 1)[0]);
}

constexpr Named<Test> kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<Kind::kUndefined>},
    {"none", is_kind<Kind::kNone>},
    {"boolean", is_kind<Kind::kBoolean>},
    {"true", is_the_boolean<true>},
    {"false", is_the_boolean<false>},
    {"number", is_number},
    {"string", is_kind<Kind::kText>},
    {"mapping", is_kind<Kind::kDict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable_test},
    {"in", compares<Operator::kIn>},
    {"==", compares<Operator::kEqual>},
    {"eq", compares<Operator::kEqual>},
    {"equalto", compares<Operator::kEqual>},
};

}  // namespace

const Named<Test>* find_test(std::string_view name) { return find_named(kTests, name); }

}  // namespace lfm2::jinja
