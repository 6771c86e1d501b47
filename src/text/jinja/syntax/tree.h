// The syntax tree of a template. Names are resolved to places (resolve_names), so that rendering looks up only
// attributes and the caller's variables by name.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/syntax/lexer.h"

namespace lfm2::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

// A variable of the running function (the template, a macro, or a call's body), or of the function `hops` levels
// outside it.
struct VariableRef {
  int hops = 0;
  int slot = 0;
  bool parameter = false;  // a parameter, which always has a value
};

// The initial value of a variable of a scope.
struct Entry {
  enum class From : uint8_t { kVariables, kOuter, kNothing };
  int slot;
  From from;
  VariableRef outer;    // kOuter: a copy of this one
  size_t variable = 0;  // kVariables: the number of the caller's variable
};
struct Scope {
  std::vector<Entry> entries;
  std::vector<int> slots;  // the scope's own variables, which are cleared when it ends
};

enum class ExpressionKind : uint8_t {
  kConstant,
  kName,
  kAttribute,  // operands[0].name
  kItem,       // operands[0][operands[1]]
  kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], the last three may be null
  kCall,       // operands[0](call)
  kFilter,     // operands[0] | filter(call); operands[0] is null in a filter block
  kTest,       // operands[0] is test(call)
  kNot,
  kNegative,
  kArithmetic,   // operands[0] operators[0] operands[1]
  kCompare,      // operands[0] operators[0] operands[1] operators[1] operands[2] …
  kConcatenate,  // operands[0] ~ operands[1] …
  kAnd,
  kOr,
  kCondition,  // operands[0] if operands[1] else operands[2], which may be null
  kList,
  kTuple,
  kDict,                // keys and values in turn
  kNamespaceAttribute,  // only as a target: a namespace's place and an attribute's name
};

struct CallSyntax {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string_view, ExpressionPtr>> keyword;
  ExpressionPtr more_positional;  // *args
};

struct Expression {
  ExpressionKind kind;
  int line;
  int depth = 1;  // of the tree below
  std::string_view name;
  Value constant;
  VariableRef place;
  std::vector<ExpressionPtr> operands;
  std::vector<Operator> operators;
  std::unique_ptr<CallSyntax> call;
  const Named<Call>* filter = nullptr;  // null: unknown, an error when it is evaluated
  const Named<Test>* test = nullptr;
};

enum class StatementKind : uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kGeneration,
  kBreak,
  kContinue,
};

// A function with its own variables: the template itself, a macro, or the body of a call block.
struct FunctionSyntax {
  std::string_view name;
  std::vector<std::string_view> parameters;
  std::vector<VariableRef> parameter_places;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  Scope scope;
  int slots = 0;
  // The place of the variable `caller`, if the macro uses it.
  bool uses_caller = false;
  VariableRef caller;
};

struct Statement {
  StatementKind kind;
  int line;
  std::vector<ExpressionPtr> expressions;  // kOutput: all; kIf: the conditions; else the only one
  ExpressionPtr target;                    // kFor, kSet, kSetBlock
  ExpressionPtr condition;                 // kFor: which items
  std::vector<Body> bodies;                // kIf: one for each condition, else one
  Body otherwise;                          // kIf, kFor
  Scope scope, otherwise_scope, condition_scope;
  ExpressionPtr condition_target;            // kFor: `target` again, in the scope of the condition
  VariableRef loop;                          // kFor
  VariableRef name;                          // kMacro: the variable that holds it
  std::unique_ptr<FunctionSyntax> function;  // kMacro, kCallBlock, kGeneration
};

struct Template {
  Source source;
  FunctionSyntax root;
  std::vector<std::string_view> variables;  // names whose values the caller or Jinja itself provides
};

// Parses a template's text. Error(kData) for unsupported constructs, naming the template by `what`, and the line.
std::unique_ptr<Template> parse_template(std::string_view text, std::string what);

// Resolves every name of a template to the variable that Jinja's compiler would choose: its scope and its initial
// value. Scopes are the template, macros, the bodies of calls, loops, with, filter and set blocks.
void resolve_names(Template& tree);

}  // namespace lfm2::jinja
