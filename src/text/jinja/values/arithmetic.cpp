// Python's arithmetic on values: + - * % and the sign, of integers, texts and lists.
#include <vector>

#include "text/jinja/values/operators.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

std::string_view symbol(Operator op) { return std::string_view("+-*%").substr(static_cast<size_t>(op), 1); }

[[noreturn]] void fail_integer(const Heap& heap) { heap.fail("an integer of more than 128 bits is not supported"); }

Value integer_arithmetic(Heap& heap, Operator op, Integer a, Integer b) {
  Integer result = 0;
  bool overflow = false;
  if (op == Operator::kAdd) overflow = __builtin_add_overflow(a, b, &result);
  if (op == Operator::kSubtract) overflow = __builtin_sub_overflow(a, b, &result);
  if (op == Operator::kMultiply) overflow = __builtin_mul_overflow(a, b, &result);
  if (op == Operator::kModulo) {
    if (b == 0) heap.fail("division by zero");
    const Integer rest = b == -1 ? 0 : a % b;  // the least integer cannot be divided by -1
    result = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  if (overflow) fail_integer(heap);
  return Value::integer(result);
}

// Text, list or tuple times an integer.
Value repeat(Heap& heap, const Value& value, Integer times) {
  if (value.is_text()) {
    const std::string_view text = value.as_text();
    if (times <= 0 || text.empty()) return Value::text({}, value.is_markup());
    if (times > static_cast<Integer>(heap.limits().memory_bytes / text.size()))
      heap.charge_memory(heap.limits().memory_bytes + 1);
    heap.charge_memory(text.size() * static_cast<size_t>(times));
    std::string repeated;
    for (Integer i = 0; i < times; ++i) repeated += text;
    return heap.text(repeated, value.is_markup());
  }
  const auto items = value.as<Items>().values;
  if (times <= 0 || items.empty()) return heap.sequence(value.kind(), {});
  if (times > static_cast<Integer>(heap.limits().memory_bytes / sizeof(Value) / items.size()))
    heap.charge_memory(heap.limits().memory_bytes + 1);
  heap.charge_memory(items.size_bytes() * static_cast<size_t>(times));
  std::vector<Value> repeated;
  for (Integer i = 0; i < times; ++i) repeated.insert(repeated.end(), items.begin(), items.end());
  return heap.sequence(value.kind(), repeated);
}

Value add_texts(Heap& heap, const Value& a, const Value& b) {
  if (!a.is_markup() && !b.is_markup()) return heap.concatenate(a.as_text(), b.as_text());
  const Value x = escape(heap, a), y = escape(heap, b);
  return heap.concatenate(x.as_text(), y.as_text(), true);
}

Value add_items(Heap& heap, const Value& a, const Value& b) {
  const auto x = a.as<Items>().values, y = b.as<Items>().values;
  std::vector<Value> joined(x.begin(), x.end());
  joined.insert(joined.end(), y.begin(), y.end());
  return heap.sequence(a.kind(), joined);
}

bool repeats(const Value& value) { return value.is_text() || value.is_sequence(); }

}  // namespace

Value arithmetic(Heap& heap, Operator op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(heap, op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) heap.fail(unsupported("arithmetic on floats"));
  if (op == Operator::kAdd && a.is_text() && b.is_text()) return add_texts(heap, a, b);
  if (op == Operator::kAdd && a.kind() == b.kind() && a.is_sequence()) return add_items(heap, a, b);
  if (op == Operator::kMultiply && repeats(a) && b.is_integral()) return repeat(heap, a, b.as_integer());
  if (op == Operator::kMultiply && repeats(b) && a.is_integral()) return repeat(heap, b, a.as_integer());
  if (a.is(Kind::kView) || b.is(Kind::kView)) heap.fail(unsupported("arithmetic on views of dicts"));
  require_defined(heap, a);
  if (op == Operator::kModulo && a.is_text()) heap.fail(unsupported("the operator '%' on text"));
  require_defined(heap, b);
  heap.fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(a), type_name(b)));
}

Value negate(Heap& heap, const Value& value) {
  if (value.is(Kind::kReal)) heap.fail(unsupported("arithmetic on floats"));
  if (!value.is_integral()) refuse(heap, value, fmt::format("bad operand type for unary -: '{}'", type_name(value)));
  Integer result = 0;
  if (__builtin_sub_overflow(Integer{0}, value.as_integer(), &result)) fail_integer(heap);
  return Value::integer(result);
}

}  // namespace lfm2::jinja
