// Expressions, and calls of macros, methods and functions; statements are in execute.cpp.
#include "text/jinja/evaluate.h"

#include <algorithm>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

// Removes the argument of this name and returns it; missing if there is none.
Value take(Arguments& arguments, std::string_view name) {
  const auto found = std::find_if(arguments.keyword.begin(), arguments.keyword.end(),
                                  [&](const auto& argument) { return argument.first == name; });
  if (found == arguments.keyword.end()) return {};
  const Value value = found->second;
  arguments.keyword.erase(found);
  return value;
}

}  // namespace

Value& Evaluator::at(const VariableRef& place) {
  Activation* activation = activation_;
  for (int hops = place.hops; hops > 0; --hops) activation = activation->outer;
  return activation->slots[static_cast<size_t>(place.slot)];
}

Value Evaluator::evaluate(const Expression& expression) {
  const Heap::Level level(heap_);
  heap_.charge(1);
  const auto operand = [&](size_t index) { return evaluate(*expression.operands[index]); };
  // Messages name the line of the failing operation, so the line is set after the operands are evaluated.
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

Arguments Evaluator::evaluate_arguments(const CallSyntax& call) {
  Arguments arguments;
  for (const ExpressionPtr& argument : call.positional) arguments.positional.push_back(evaluate(*argument));
  if (call.more_positional) {
    const auto more = items_of(heap_, evaluate(*call.more_positional));
    heap_.charge_memory(more.size_bytes());
    arguments.positional.insert(arguments.positional.end(), more.begin(), more.end());
  }
  for (const auto& [name, argument] : call.keyword) {
    heap_.charge(1 + arguments.keyword.size() / 16);
    for (const auto& [other, value] : arguments.keyword)
      if (other == name) heap_.fail(fmt::format("keyword argument '{}' is given twice", name));
    arguments.keyword.emplace_back(name, evaluate(*argument));
  }
  return arguments;
}

Value Evaluator::evaluate_call(const Expression& expression, const Value* caller) {
  const Value callee = evaluate(*expression.operands[0]);
  Arguments arguments = evaluate_arguments(*expression.call);
  if (caller != nullptr) arguments.keyword.emplace_back("caller", *caller);
  heap_.set_line(expression.line);
  return call(callee, arguments);
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
  heap_.charge(1);
  if (callee.is(Kind::kMacro)) return call_macro(callee.as<Macro>(), arguments);
  if (callee.is(Kind::kMethod)) return callee.as<Method>().method->call(heap_, callee.as<Method>().self, arguments);
  if (callee.is(Kind::kFunction)) return call_function(heap_, callee.as_function(), arguments, now_);
  if (callee.is(Kind::kLoop)) heap_.fail(unsupported("a recursive loop"));
  refuse(heap_, callee, fmt::format("'{}' object is not callable", type_name(callee)));
}

// Matches arguments as jinja2.runtime.Macro does: positional ones first, then by name, then defaults, which are
// evaluated in the macro's own scope.
Value Evaluator::call_macro(const Macro& macro, Arguments& arguments) {
  const Heap::Level level(heap_);
  const FunctionSyntax& function = *macro.function;
  std::vector<Value> none(static_cast<size_t>(function.slots));
  Activation* const activation = heap_.make<Activation>(macro.outer, heap_.copy_array(std::span<const Value>(none)));
  const auto place = [&](const VariableRef& where) -> Value& {
    return activation->slots[static_cast<size_t>(where.slot)];
  };
  const size_t parameters = function.parameters.size();
  heap_.charge(parameters * (1 + arguments.keyword.size() / 16));
  const size_t given = std::min(parameters, arguments.positional.size());
  for (size_t i = 0; i < parameters; ++i)
    place(function.parameter_places[i]) = i < given ? arguments.positional[i] : take(arguments, function.parameters[i]);
  if (function.uses_caller) {
    const Value caller = take(arguments, "caller");
    place(function.caller) =
        caller.is_missing() || caller.is_none() ? heap_.undefined(Undefined::Why::kOther, "No caller defined") : caller;
  }
  if (!arguments.keyword.empty()) {
    heap_.fail(fmt::format("macro '{}' takes no keyword argument '{}'", function.name, arguments.keyword[0].first));
  }
  if (arguments.positional.size() > given)
    heap_.fail(fmt::format("macro '{}' takes not more than {} argument(s)", function.name, parameters));

  Activation* const before = std::exchange(activation_, activation);
  const Value text = capture([&] {
    begin(function.scope);
    const size_t first_default = parameters - function.defaults.size();
    for (size_t i = 0; i < parameters; ++i) {
      Value& value = place(function.parameter_places[i]);
      if (!value.is_missing()) continue;
      value = i < first_default ? heap_.undefined(Undefined::Why::kParameter, function.parameters[i])
                                : evaluate(*function.defaults[i - first_default]);
    }
    execute(function.body);
  });
  activation_ = before;
  return text;
}

}  // namespace lfm2::jinja
