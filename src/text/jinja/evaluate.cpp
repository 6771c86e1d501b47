// Expressions; calls are in call.cpp, statements in execute.cpp.
#include "text/jinja/evaluate.h"

#include "text/jinja/builtins/attributes.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

Value& Evaluator::at(const Place& place) {
  Activation* activation = activation_;
  for (int hops = place.hops; hops > 0; --hops) activation = activation->outer;
  return activation->slots[static_cast<size_t>(place.slot)];
}

Value Evaluator::evaluate(const Expression& expression) {
  const Heap::Level level(heap_);
  heap_.charge(1);
  const auto operand = [&](size_t index) { return evaluate(*expression.operands[index]); };
  // Messages name the line of what fails, so it is set when the operands are done.
  const auto here = [&]() -> Heap& {
    heap_.set_line(expression.line);
    return heap_;
  };
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return evaluate_name(expression);
    case ExpressionKind::kAttribute: {
      const Value value = operand(0);
      return get_attribute(here(), value, expression.name);
    }
    case ExpressionKind::kItem: {
      const Value value = operand(0), key = operand(1);
      return get_item(here(), value, key);
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(expression);
    case ExpressionKind::kCall:
      return evaluate_call(expression, nullptr);
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, operand(0));
    case ExpressionKind::kTest:
      return Value::boolean(evaluate_test(expression));
    case ExpressionKind::kNot:
      return Value::boolean(!truth(operand(0)));
    case ExpressionKind::kNegative: {
      const Value value = operand(0);
      return negate(here(), value);
    }
    case ExpressionKind::kArithmetic: {
      const Value left = operand(0), right = operand(1);
      return arithmetic(here(), expression.operators[0], left, right);
    }
    case ExpressionKind::kCompare:
      return evaluate_compare(expression);
    case ExpressionKind::kConcatenate:
      return concatenate(expression);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
      return evaluate_logic(expression);
    case ExpressionKind::kCondition:
      return evaluate_condition(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return make_sequence(expression);
    case ExpressionKind::kDict:
      return make_dict(expression);
    case ExpressionKind::kNamespaceAttribute:
      break;  // only a target
  }
  return {};
}

Value Evaluator::evaluate_name(const Expression& expression) {
  const Value& value = at(expression.place);
  if (!value.is_missing()) return value;
  heap_.set_line(expression.line);
  if (expression.place.parameter) heap_.fail(fmt::format("'{}' is read where it has no value", expression.name));
  return heap_.undefined(Undefined::Why::kName, expression.name);
}

Value Evaluator::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    const Value right = evaluate(*expression.operands[i + 1]);
    heap_.set_line(expression.line);
    if (!compare(heap_, expression.operators[i], left, right)) return Value::boolean(false);
    left = right;
  }
  return Value::boolean(true);
}

// As in Python, the value is that of the operand that decides.
Value Evaluator::evaluate_logic(const Expression& expression) {
  const bool decides = expression.kind == ExpressionKind::kOr;
  Value value;
  for (const ExpressionPtr& operand : expression.operands) {
    value = evaluate(*operand);
    if (truth(value) == decides) break;
  }
  return value;
}

Value Evaluator::evaluate_condition(const Expression& expression) {
  if (truth(evaluate(*expression.operands[1]))) return evaluate(*expression.operands[0]);
  if (expression.operands[2]) return evaluate(*expression.operands[2]);
  return heap_.undefined(Undefined::Why::kOther,
                         "the inline if-expression evaluated to false and no else section was defined");
}

Value Evaluator::concatenate(const Expression& expression) {
  Value joined = Value::text({});
  for (const ExpressionPtr& operand : expression.operands) {
    const Value value = evaluate(*operand);
    heap_.set_line(expression.line);
    joined = heap_.concatenate(joined.as_text(), str(heap_, value).as_text());
  }
  return joined;
}

Value Evaluator::make_sequence(const Expression& expression) {
  std::vector<Value> values;
  for (const ExpressionPtr& operand : expression.operands) values.push_back(evaluate(*operand));
  heap_.set_line(expression.line);
  return heap_.sequence(expression.kind == ExpressionKind::kList ? Kind::kList : Kind::kTuple, values);
}

Value Evaluator::make_dict(const Expression& expression) {
  DictBuilder builder(heap_);
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    const Value key = evaluate(*expression.operands[i]), value = evaluate(*expression.operands[i + 1]);
    heap_.set_line(expression.line);
    builder.set(key, value);
  }
  return builder.finish();
}

Value Evaluator::evaluate_slice(const Expression& expression) {
  std::vector<Value> parts;
  for (const ExpressionPtr& operand : expression.operands) parts.push_back(operand ? evaluate(*operand) : Value());
  heap_.set_line(expression.line);
  return get_slice(heap_, parts[0], parts[1], parts[2], parts[3]);
}

Value Evaluator::evaluate_filter(const Expression& expression, const Value& input) {
  const Arguments arguments = evaluate_arguments(*expression.call);
  heap_.set_line(expression.line);
  if (expression.filter == nullptr) heap_.fail(unknown(Naming::kFilter, expression.name));
  return apply_filter(heap_, *expression.filter, input, arguments);
}

bool Evaluator::evaluate_test(const Expression& expression) {
  const Value value = evaluate(*expression.operands[0]);
  const Arguments arguments = evaluate_arguments(*expression.call);
  heap_.set_line(expression.line);
  if (expression.test == nullptr) heap_.fail(unknown(Naming::kTest, expression.name));
  return expression.test->call(heap_, value, arguments);
}

}  // namespace lfm2::jinja
