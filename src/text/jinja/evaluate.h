// Renders a template. Each rendering has its own Evaluator.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "text/jinja/syntax/tree.h"
#include "text/jinja/values/heap.h"

namespace lfm2::jinja {

struct Activation;

// A macro with the variables of the scopes in which it was defined.
struct Macro {
  const FunctionSyntax* function;
  Activation* outer;
};

class Evaluator {
 public:
  // `variables` has a value, possibly missing, for each variable of the template.
  Evaluator(Heap& heap, std::vector<Value> variables, std::time_t now)
      : heap_(heap), variables_(std::move(variables)), now_(now) {}

  std::string render(const Template& tree);

  Value evaluate(const Expression& expression);
  void assign(const Expression& target, const Value& value);

 private:
  friend class LoopItems;
  enum class Flow { kNext, kBreak, kContinue };

  // Expressions (evaluate.cpp).
  Value evaluate_name(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_logic(const Expression& expression);
  Value evaluate_condition(const Expression& expression);
  Value concatenate(const Expression& expression);
  Value make_sequence(const Expression& expression);
  Value make_dict(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_filter(const Expression& expression, const Value& input);
  bool evaluate_test(const Expression& expression);
  Arguments evaluate_arguments(const CallSyntax& call);
  Value evaluate_call(const Expression& expression, const Value* caller);
  Value call(const Value& callee, Arguments& arguments);
  Value call_macro(const Macro& macro, Arguments& arguments);
  Value& at(const VariableRef& place);

  // Statements (execute.cpp).
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_for(const Statement& statement);
  void execute_set(const Statement& statement);
  Value filter_text(const Expression& expression, const Value& text);
  void assign_tuple(const Expression& target, const Value& value);
  void begin(const Scope& scope);
  void end(const Scope& scope);
  void write(const Value& value);
  void write_text(const Value& value);
  // Returns the output of the body as a text.
  template <class Write>
  Value capture(Write&& write);

  Heap& heap_;
  std::vector<Value> variables_;
  std::time_t now_;
  Activation* activation_ = nullptr;
  std::string* out_ = nullptr;
};

// The variables of a running function.
struct Activation {
  Activation* outer;
  std::span<Value> slots;
};

template <class Write>
Value Evaluator::capture(Write&& write) {
  std::string text;
  std::string* const before = std::exchange(out_, &text);
  write();
  out_ = before;
  return heap_.text(text);
}

}  // namespace lfm2::jinja
