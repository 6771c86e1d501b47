// Statements.
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/values/format.h"

namespace lfm2::jinja {

// The items of a loop that pass its condition, which is evaluated for each item on demand.
class LoopItems : public LoopSource {
 public:
  LoopItems(Evaluator& evaluator, const Statement& statement, std::span<const Value> items)
      : evaluator_(evaluator), statement_(statement), items_(items) {}

  bool pull(Value& item) override {
    while (next_ < items_.size()) {
      Value candidate = items_[next_++];
      if (!all_pass_ && !passes(candidate)) continue;
      item = candidate;
      return true;
    }
    return false;
  }
  size_t rest() override {
    if (!all_pass_) {
      std::vector<Value> passed;
      for (Value item; pull(item);) passed.push_back(item);
      items_ = evaluator_.heap_.copy_array(std::span<const Value>(passed));
      next_ = 0;
      all_pass_ = true;
    }
    return items_.size() - next_;
  }

 private:
  // An item that passes becomes the value of the loop's target: if the target unpacks it, a tuple.
  bool passes(Value& item) {
    evaluator_.assign(*statement_.condition_target, item);
    if (!truth(evaluator_.evaluate(*statement_.condition))) return false;
    item = evaluator_.evaluate(*statement_.condition_target);
    return true;
  }

  Evaluator& evaluator_;
  const Statement& statement_;
  std::span<const Value> items_;
  size_t next_ = 0;
  bool all_pass_ = statement_.condition == nullptr;
};

std::string Evaluator::render(const Template& tree) {
  std::string text;
  std::vector<Value> none(static_cast<size_t>(tree.root.slots));
  activation_ = heap_.make<Activation>(nullptr, heap_.copy_array(std::span<const Value>(none)));
  out_ = &text;
  begin(tree.root.scope);
  execute(tree.root.body);
  return text;
}

void Evaluator::begin(const Scope& scope) {
  heap_.charge(scope.entries.size() / 8);
  for (const Entry& entry : scope.entries) {
    Value& value = activation_->slots[static_cast<size_t>(entry.slot)];
    switch (entry.from) {
      case Entry::From::kVariables:
        value = variables_[entry.variable];
        break;
      case Entry::From::kOuter:
        value = at(entry.outer);
        break;
      case Entry::From::kNothing:
        value = Value();
        break;
    }
  }
}

void Evaluator::end(const Scope& scope) {
  heap_.charge(scope.slots.size() / 8);
  for (const int slot : scope.slots) activation_->slots[static_cast<size_t>(slot)] = Value();
}

void Evaluator::write(const Value& value) {
  append_str(heap_, *out_, value);
  if (out_->size() > heap_.limits().output_bytes)
    heap_.fail(fmt::format("the template writes more than {} MiB", heap_.limits().output_bytes >> 20));
}

// The result of filter and call blocks is output unchanged, so it must be text.
void Evaluator::write_text(const Value& value) {
  text_argument(heap_, value, "what the block gives");
  write(value);
}

Evaluator::Flow Evaluator::execute(const Body& body) {
  for (const StatementPtr& statement : body) {
    const Flow flow = execute(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute(const Statement& statement) {
  const Heap::Level level(heap_);
  heap_.charge(1);
  heap_.set_line(statement.line);
  switch (statement.kind) {
    case StatementKind::kOutput:
      for (const ExpressionPtr& expression : statement.expressions) {
        const Value value = evaluate(*expression);
        heap_.set_line(expression->line);
        write(value);
      }
      return Flow::kNext;
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      execute_set(statement);
      return Flow::kNext;
    case StatementKind::kMacro:
      at(statement.name) = Value::object(Kind::kMacro, heap_.make<Macro>(statement.function.get(), activation_));
      return Flow::kNext;
    case StatementKind::kCallBlock: {
      const Value caller = Value::object(Kind::kMacro, heap_.make<Macro>(statement.function.get(), activation_));
      write_text(evaluate_call(*statement.expressions[0], &caller));
      return Flow::kNext;
    }
    case StatementKind::kGeneration: {
      Arguments none;
      write(call_macro({statement.function.get(), activation_}, none));
      return Flow::kNext;
    }
    case StatementKind::kFilterBlock: {
      begin(statement.scope);
      const Value text = capture([&] { execute(statement.bodies[0]); });
      write_text(filter_text(*statement.expressions[0], text));
      end(statement.scope);
      return Flow::kNext;
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

// This text is the operand of the first filter in the chain.
Value Evaluator::filter_text(const Expression& expression, const Value& text) {
  const Heap::Level level(heap_);
  return evaluate_filter(expression, expression.operands[0] ? filter_text(*expression.operands[0], text) : text);
}

Evaluator::Flow Evaluator::execute_if(const Statement& statement) {
  for (size_t i = 0; i < statement.bodies.size(); ++i)
    if (truth(evaluate(*statement.expressions[i]))) return execute(statement.bodies[i]);
  return execute(statement.otherwise);
}

Evaluator::Flow Evaluator::execute_for(const Statement& statement) {
  const Value iterable = evaluate(*statement.expressions[0]);
  heap_.set_line(statement.line);
  if (statement.condition) begin(statement.condition_scope);
  LoopItems items(*this, statement, items_of(heap_, iterable));
  Loop& loop = *heap_.make<Loop>();
  loop.source = &items;
  const Value loop_value = Value::object(Kind::kLoop, &loop);
  bool completed = false;  // the output of a body that ends by break or continue does not count
  Value item;
  for (size_t index = 0; loop.look_ahead(); ++index) {
    heap_.charge(1);
    loop.index0 = index;
    loop.before = std::exchange(loop.current, loop.after);
    loop.after = Value();
    assign(*statement.target, loop.current);
    at(statement.loop) = loop_value;
    begin(statement.scope);
    const Flow flow = execute(statement.bodies[0]);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) completed = true;
  }
  loop.source = nullptr;
  end(statement.scope);
  if (completed || statement.otherwise.empty()) return Flow::kNext;
  begin(statement.otherwise_scope);
  const Flow flow = execute(statement.otherwise);
  end(statement.otherwise_scope);
  return flow;
}

void Evaluator::execute_set(const Statement& statement) {
  if (statement.kind == StatementKind::kSet) {
    assign(*statement.target, evaluate(*statement.expressions[0]));
    return;
  }
  begin(statement.scope);
  const Value text = capture([&] { execute(statement.bodies[0]); });
  end(statement.scope);
  assign(*statement.target, text);
}

void Evaluator::assign(const Expression& target, const Value& value) {
  if (target.kind == ExpressionKind::kTuple) {
    assign_tuple(target, value);
    return;
  }
  if (target.kind == ExpressionKind::kName) {
    at(target.place) = value;
    return;
  }
  const Value space = at(target.operands[0]->place);
  heap_.set_line(target.line);
  if (!space.is(Kind::kNamespace)) heap_.fail("cannot assign attribute on non-namespace object");
  if (Value* found = find_in(heap_, space.as<Namespace>(), target.name)) {
    *found = value;
    return;
  }
  heap_.charge_memory(2 * sizeof(NamespaceEntry));
  space.as<Namespace>().entries.push_back({target.name, value});
}

void Evaluator::assign_tuple(const Expression& target, const Value& value) {
  heap_.set_line(target.line);
  const auto items = items_of(heap_, value);
  if (items.size() != target.operands.size())
    heap_.fail(fmt::format("{} values to unpack, expected {}", items.size(), target.operands.size()));
  for (size_t i = 0; i < items.size(); ++i) assign(*target.operands[i], items[i]);
}

}  // namespace lfm2::jinja
