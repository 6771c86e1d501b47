// Calls of macros, methods and functions.
#include <algorithm>

#include "text/jinja/builtins/attributes.h"
#include "text/jinja/builtins/functions.h"
#include "text/jinja/builtins/methods.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

// Takes the argument of this name out; missing where there is none.
Value take(Arguments& arguments, std::string_view name) {
  const auto found = std::find_if(arguments.keyword.begin(), arguments.keyword.end(),
                                  [&](const auto& argument) { return argument.first == name; });
  if (found == arguments.keyword.end()) return {};
  const Value value = found->second;
  arguments.keyword.erase(found);
  return value;
}

}  // namespace

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
  switch (callee.kind()) {
    case Kind::kMacro:
      return call_macro(callee.as<Macro>(), arguments);
    case Kind::kMethod:
      return callee.as<Method>().method->call(heap_, callee.as<Method>().self, arguments);
    case Kind::kFunction:
      return call_function(heap_, callee.as_function(), arguments, now_);
    case Kind::kLoop:
      heap_.fail(unsupported("a recursive loop"));
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kBoolean:
    case Kind::kInteger:
    case Kind::kDigits:
    case Kind::kReal:
    case Kind::kText:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator:
    case Kind::kNamespace:
      refuse(heap_, callee, fmt::format("'{}' object is not callable", type_name(callee)));
  }
  return {};
}

// Matches arguments as jinja2.runtime.Macro does: positional ones first, then by name, then defaults, which are
// evaluated in the macro's own scope.
Value Evaluator::call_macro(const Macro& macro, Arguments& arguments) {
  const Heap::Level level(heap_);
  const FunctionSyntax& function = *macro.function;
  std::vector<Value> none(static_cast<size_t>(function.slots));
  Activation* const activation = heap_.make<Activation>(macro.outer, heap_.copy_array(std::span<const Value>(none)));
  const auto place = [&](const Place& where) -> Value& { return activation->slots[static_cast<size_t>(where.slot)]; };
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
