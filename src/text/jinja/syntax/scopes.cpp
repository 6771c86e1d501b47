// Jinja decides at compile time, by the order of the text, what a name means. A name that is read before anything is
// stored in it is the caller's variable. A name that is stored first begins as missing, or as a copy of the variable of
// the outer scope. So each scope is visited twice: collect() finds all its names, then resolve() assigns each name its
// place.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "text/jinja/syntax/tree.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

// A scope while its names are collected.
struct Names {
  Names* parent;
  FunctionSyntax* function;
  Scope* scope;
  bool soft;  // in an if: an unknown name is an error only when it is evaluated
  std::map<std::string_view, VariableRef> places;
  std::set<int> parameters;  // slots set by the call or the loop
};

ExpressionPtr copy_target(const Expression& target) {
  auto copy = std::make_unique<Expression>();
  copy->kind = target.kind;
  copy->line = target.line;
  copy->name = target.name;
  for (const ExpressionPtr& part : target.operands) copy->operands.push_back(copy_target(*part));
  return copy;
}

class Resolver {
 public:
  explicit Resolver(Template& tree) : tree_(tree) {}

  void run() {
    Names names = begin(nullptr, tree_.root, tree_.root.scope);
    collect(names, tree_.root.body, false);
    resolve(names, tree_.root.body);
    finish(names);
  }

 private:
  Names begin(Names* parent, FunctionSyntax& function, Scope& scope) {
    return {parent, &function, &scope, false, {}, {}};
  }

  static const VariableRef* find(const Names& names, std::string_view name, int& hops) {
    hops = 0;
    const FunctionSyntax* function = names.function;
    for (const Names* scope = &names; scope != nullptr; scope = scope->parent) {
      if (scope->function != function) ++hops;
      function = scope->function;
      if (const auto found = scope->places.find(name); found != scope->places.end()) return &found->second;
    }
    return nullptr;
  }

  VariableRef add(Names& names, std::string_view name) {
    const VariableRef place{0, names.function->slots++, false};
    names.scope->slots.push_back(place.slot);
    names.places[name] = place;
    return place;
  }

  size_t variable(std::string_view name) {
    const auto found = variables_.try_emplace(name, tree_.variables.size());
    if (found.second) tree_.variables.push_back(name);
    return found.first->second;
  }

  void load(Names& names, std::string_view name) {
    int hops;
    if (find(names, name, hops) != nullptr) return;
    names.scope->entries.push_back({add(names, name).slot, Entry::From::kVariables, {}, variable(name)});
  }

  // A name that only one branch of an if stores begins as if it had been read first.
  void store(Names& names, std::string_view name, int line, bool in_branch) {
    if (name == "loop" && loops_ > 0) fail(line, "Can't assign to special loop variable in for-loop target");
    if (name == "caller") fail(line, unsupported("assigning to 'caller'"));
    if (names.places.count(name) > 0) return;
    int hops;
    const VariableRef* outer = names.parent == nullptr ? nullptr : find(*names.parent, name, hops);
    Entry entry{0, Entry::From::kNothing, {}, 0};
    if (outer != nullptr) {
      entry.from = Entry::From::kOuter;
      entry.outer = *outer;
      entry.outer.hops = hops + (names.parent->function == names.function ? 0 : 1);
    } else if (in_branch) {
      entry.from = Entry::From::kVariables;
      entry.variable = variable(name);
    }
    entry.slot = add(names, name).slot;
    names.scope->entries.push_back(entry);
  }

  // The variables that a call or a loop sets. A loop's variables have a value wherever they can be named (`always`); a
  // parameter has none yet in the defaults of earlier parameters.
  VariableRef declare(Names& names, std::string_view name, bool always) {
    if (names.places.count(name) == 0) add(names, name);
    VariableRef& place = names.places[name];
    place.parameter = always;
    names.parameters.insert(place.slot);
    return place;
  }

  void store_target(Names& names, const Expression& target, bool in_branch) {
    if (target.kind == ExpressionKind::kName) store(names, target.name, target.line, in_branch);
    for (const ExpressionPtr& part : target.operands) {
      if (target.kind == ExpressionKind::kTuple)
        store_target(names, *part, in_branch);
      else
        load(names, part->name);  // the namespace whose attribute it is
    }
  }

  void declare_target(Names& names, const Expression& target) {
    if (target.kind == ExpressionKind::kName) {
      if (target.name == "loop") fail(target.line, "Can't assign to special loop variable in for-loop target");
      declare(names, target.name, true);
    }
    for (const ExpressionPtr& part : target.operands) declare_target(names, *part);
  }

  void collect(Names& names, const Expression* expression) {
    if (expression == nullptr) return;
    if (expression->kind == ExpressionKind::kName) {
      if (is_unsupported(Naming::kName, expression->name))
        fail(expression->line, unsupported(Naming::kName, expression->name));
      load(names, expression->name);
    }
    for_parts(*expression, [&](const ExpressionPtr& part) { collect(names, part.get()); });
  }

  template <class Visit>
  static void for_parts(const Expression& expression, Visit&& visit) {
    for (const ExpressionPtr& operand : expression.operands) visit(operand);
    if (!expression.call) return;
    for (const ExpressionPtr& argument : expression.call->positional) visit(argument);
    for (const auto& [name, argument] : expression.call->keyword) visit(argument);
    visit(expression.call->more_positional);
  }

  // The names of a body, without those in scopes within it.
  void collect(Names& names, const Body& body, bool in_branch) {
    for (const StatementPtr& statement : body) collect(names, *statement, in_branch);
  }
  void collect(Names& names, const Statement& statement, bool in_branch);

  void resolve(Names& names, Expression* expression);
  void resolve(Names& names, const Body& body) {
    for (const StatementPtr& statement : body) resolve(names, *statement);
  }
  void resolve(Names& names, Statement& statement);
  void resolve_loop(Names& names, Statement& statement);
  void resolve_function(Names& names, FunctionSyntax& function);
  VariableRef place_of(const Names& names, std::string_view name) {
    int hops;
    VariableRef place = *find(names, name, hops);
    place.hops = hops;
    return place;
  }
  // The call or the loop sets a parameter, so the beginning of its scope does not.
  static void finish(Names& names) {
    auto& entries = names.scope->entries;
    const auto parameter = [&](const Entry& entry) { return names.parameters.count(entry.slot) > 0; };
    entries.erase(std::remove_if(entries.begin(), entries.end(), parameter), entries.end());
  }
  // A macro accepts a body if it, or a scope within it, uses `caller`.
  static void note_use(Names& names, std::string_view name) {
    for (Names* scope = &names; scope != nullptr; scope = scope->parent)
      scope->function->uses_caller |= name == "caller";
  }

  [[noreturn]] void fail(int line, const std::string& message) { fail_at(tree_.source, line, message); }

  Template& tree_;
  std::map<std::string_view, size_t> variables_;
  int loops_ = 0;
};

void Resolver::collect(Names& names, const Statement& statement, bool in_branch) {
  const auto collect_all = [&] {
    for (const ExpressionPtr& expression : statement.expressions) collect(names, expression.get());
  };
  switch (statement.kind) {
    case StatementKind::kOutput:
    case StatementKind::kFor:
    case StatementKind::kCallBlock:
    case StatementKind::kFilterBlock:
      collect_all();
      return;
    case StatementKind::kIf:
      for (size_t i = 0; i < statement.bodies.size(); ++i) {
        collect(names, statement.expressions[i].get());
        collect(names, statement.bodies[i], true);
      }
      collect(names, statement.otherwise, true);
      return;
    case StatementKind::kSet:
      collect_all();
      store_target(names, *statement.target, in_branch);
      return;
    case StatementKind::kSetBlock:
      store_target(names, *statement.target, in_branch);
      return;
    case StatementKind::kMacro:
      store(names, statement.function->name, statement.line, in_branch);
      return;
    case StatementKind::kGeneration:
    case StatementKind::kBreak:
    case StatementKind::kContinue:
      return;
  }
}

void Resolver::resolve(Names& names, Expression* expression) {
  if (expression == nullptr) return;
  const bool condition = expression->kind == ExpressionKind::kCondition;
  const bool soft = std::exchange(names.soft, names.soft || condition);
  if (expression->kind == ExpressionKind::kName) {
    expression->place = place_of(names, expression->name);
    note_use(names, expression->name);
  }
  if (!names.soft && expression->kind == ExpressionKind::kFilter && expression->filter == nullptr)
    fail(expression->line, unknown(Naming::kFilter, expression->name));
  if (!names.soft && expression->kind == ExpressionKind::kTest && expression->test == nullptr)
    fail(expression->line, unknown(Naming::kTest, expression->name));
  for_parts(*expression, [&](const ExpressionPtr& part) { resolve(names, part.get()); });
  names.soft = soft;
}

void Resolver::resolve_function(Names& outer, FunctionSyntax& function) {
  Names names = begin(&outer, function, function.scope);
  for (const std::string_view parameter : function.parameters) declare(names, parameter, false);
  function.caller = declare(names, "caller", false);
  for (const ExpressionPtr& value : function.defaults) collect(names, value.get());
  collect(names, function.body, false);
  for (const std::string_view parameter : function.parameters)
    function.parameter_places.push_back(place_of(names, parameter));
  for (const ExpressionPtr& value : function.defaults) resolve(names, value.get());
  resolve(names, function.body);
  finish(names);
}

void Resolver::resolve_loop(Names& outer, Statement& statement) {
  resolve(outer, statement.expressions[0].get());
  if (statement.condition) {
    Names names = begin(&outer, *outer.function, statement.condition_scope);
    statement.condition_target = copy_target(*statement.target);
    declare_target(names, *statement.condition_target);
    collect(names, statement.condition.get());
    resolve(names, statement.condition_target.get());
    resolve(names, statement.condition.get());
    finish(names);
  }
  ++loops_;
  Names names = begin(&outer, *outer.function, statement.scope);
  statement.loop = declare(names, "loop", true);
  declare_target(names, *statement.target);
  collect(names, statement.bodies[0], false);
  resolve(names, statement.target.get());
  resolve(names, statement.bodies[0]);
  finish(names);
  Names otherwise = begin(&outer, *outer.function, statement.otherwise_scope);
  collect(otherwise, statement.otherwise, false);
  resolve(otherwise, statement.otherwise);
  finish(otherwise);
  --loops_;
}

void Resolver::resolve(Names& names, Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kOutput:
      for (const ExpressionPtr& expression : statement.expressions) resolve(names, expression.get());
      return;
    case StatementKind::kIf: {
      const bool soft = std::exchange(names.soft, true);
      for (size_t i = 0; i < statement.bodies.size(); ++i) {
        resolve(names, statement.expressions[i].get());
        resolve(names, statement.bodies[i]);
      }
      resolve(names, statement.otherwise);
      names.soft = soft;
      return;
    }
    case StatementKind::kFor:
      resolve_loop(names, statement);
      return;
    case StatementKind::kSet:
      resolve(names, statement.target.get());
      resolve(names, statement.expressions[0].get());
      return;
    case StatementKind::kMacro:
      statement.name = place_of(names, statement.function->name);
      resolve_function(names, *statement.function);
      return;
    case StatementKind::kCallBlock:
      resolve(names, statement.expressions[0].get());
      resolve_function(names, *statement.function);
      return;
    case StatementKind::kGeneration:
      resolve_function(names, *statement.function);
      return;
    case StatementKind::kSetBlock:
    case StatementKind::kFilterBlock: {
      Names inner = begin(&names, *names.function, statement.scope);
      Expression* const filters = statement.expressions.empty() ? nullptr : statement.expressions[0].get();
      collect(inner, statement.bodies[0], false);
      collect(inner, filters);
      if (statement.target) resolve(names, statement.target.get());
      resolve(inner, filters);
      resolve(inner, statement.bodies[0]);
      finish(inner);
      return;
    }
    case StatementKind::kBreak:
    case StatementKind::kContinue:
      return;
  }
}

}  // namespace

void resolve_names(Template& tree) { Resolver(tree).run(); }

}  // namespace lfm2::jinja
