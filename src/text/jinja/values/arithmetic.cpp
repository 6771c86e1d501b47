// Python's arithmetic on values: + - * / // % ** and the signs.
#include <cmath>
#include <vector>

#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"

namespace lfm2::jinja {

namespace {

constexpr Integer kExactReal = Integer{1} << 53;  // integers up to here are reals without rounding

const char* symbol(Operator op) {
  constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSymbols[static_cast<size_t>(op)];
}

[[noreturn]] void fail_integer(const Heap& heap) { heap.fail("an integer of more than 128 bits is not supported"); }

[[noreturn]] void fail_zero(const Heap& heap) { heap.fail("division by zero"); }

Value integer_power(Heap& heap, Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) fail_zero(heap);
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  Integer result = 1;
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(result, base, &result)) fail_integer(heap);
  return Value::integer(result);
}

Value integer_arithmetic(Heap& heap, Operator op, Integer a, Integer b) {
  Integer result = 0;
  bool overflow = false;
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) fail_zero(heap);
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kDivide:
      if (a > kExactReal || a < -kExactReal || b > kExactReal || b < -kExactReal)
        heap.fail("dividing integers of more than 53 bits is not supported");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (b == -1) {  // the least integer has no positive counterpart
        if (op == Operator::kModulo) return Value::integer(0);
        return negate(heap, Value::integer(a));
      }
      const Integer rest = a % b;
      const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
      result = op == Operator::kModulo ? (rounds_down ? rest + b : rest) : a / b - (rounds_down ? 1 : 0);
      break;
    }
    case Operator::kPower:
      return integer_power(heap, a, b);
    case Operator::kEqual:
    case Operator::kNotEqual:
    case Operator::kLess:
    case Operator::kLessOrEqual:
    case Operator::kGreater:
    case Operator::kGreaterOrEqual:
    case Operator::kIn:
    case Operator::kNotIn:
      break;
  }
  if (overflow) fail_integer(heap);
  return Value::integer(result);
}

// The remainder has the sign of the divisor, and a == floor(a / b) * b + remainder, as CPython computes them.
Value real_division(Operator op, double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == Operator::kModulo) return Value::real(rest);
  if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return Value::real(whole);
}

Value real_arithmetic(Heap& heap, Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kDivide:
      if (b == 0) fail_zero(heap);
      return Value::real(a / b);
    case Operator::kFloorDivide:
    case Operator::kModulo:
      if (b == 0) fail_zero(heap);
      return real_division(op, a, b);
    case Operator::kPower: {
      const double power = std::pow(a, b);
      if ((a == 0 && b < 0) || (!std::isfinite(power) && std::isfinite(a) && std::isfinite(b)))
        heap.fail("a power without a finite real result is not supported");
      return Value::real(power);
    }
    case Operator::kEqual:
    case Operator::kNotEqual:
    case Operator::kLess:
    case Operator::kLessOrEqual:
    case Operator::kGreater:
    case Operator::kGreaterOrEqual:
    case Operator::kIn:
    case Operator::kNotIn:
      break;
  }
  return {};
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

bool is_sequence(const Value& value) { return value.is_text() || value.is(Kind::kList) || value.is(Kind::kTuple); }

}  // namespace

Value arithmetic(Heap& heap, Operator op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(heap, op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return real_arithmetic(heap, op, a.as_real(), b.as_real());
  if (op == Operator::kAdd && a.is_text() && b.is_text()) return add_texts(heap, a, b);
  if (op == Operator::kAdd && a.kind() == b.kind() && is_sequence(a)) return add_items(heap, a, b);
  if (op == Operator::kMultiply && is_sequence(a) && b.is_integral()) return repeat(heap, a, b.as_integer());
  if (op == Operator::kMultiply && is_sequence(b) && a.is_integral()) return repeat(heap, b, a.as_integer());
  require_defined(heap, a);
  if (op == Operator::kModulo && a.is_text()) return format_percent(heap, a, b);
  require_defined(heap, b);
  heap.fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(a), type_name(b)));
}

Value negate(Heap& heap, const Value& value) {
  if (value.is(Kind::kReal)) return Value::real(-value.as_real());
  if (!value.is_integral()) refuse(heap, value, fmt::format("bad operand type for unary -: '{}'", type_name(value)));
  Integer result = 0;
  if (__builtin_sub_overflow(Integer{0}, value.as_integer(), &result)) fail_integer(heap);
  return Value::integer(result);
}

Value posit(Heap& heap, const Value& value) {
  if (value.is(Kind::kReal)) return value;
  if (value.is_integral()) return Value::integer(value.as_integer());
  refuse(heap, value, fmt::format("bad operand type for unary +: '{}'", type_name(value)));
}

}  // namespace lfm2::jinja
