#include "text/jinja/syntax/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

std::optional<Operator> find_operator(const Token& token,
                                      std::initializer_list<std::pair<std::string_view, Operator>> table) {
  if (token.kind == TokenKind::kOperator)
    for (const auto& [text, op] : table)
      if (token.text == text) return op;
  return std::nullopt;
}

}  // namespace

ExpressionPtr ExpressionParser::make(ExpressionKind kind, int line) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  return node;
}

void ExpressionParser::add(Expression& node, ExpressionPtr operand) const {
  if (operand) node.depth = std::max(node.depth, operand->depth + 1);
  check_depth(node.depth);
  node.operands.push_back(std::move(operand));
}

ExpressionPtr ExpressionParser::unary(ExpressionKind kind, int line, ExpressionPtr operand) const {
  ExpressionPtr node = make(kind, line);
  add(*node, std::move(operand));
  return node;
}

ExpressionPtr ExpressionParser::binary(Operator op, int line, ExpressionPtr left, ExpressionPtr right) const {
  ExpressionPtr node = make(ExpressionKind::kArithmetic, line);
  add(*node, std::move(left));
  add(*node, std::move(right));
  node->operators.push_back(op);
  return node;
}

void ExpressionParser::check_depth(int depth) const {
  if (depth > kMaxSyntaxDepth) tokens_.fail(fmt::format("an expression nested deeper than {} levels", kMaxSyntaxDepth));
}

ExpressionPtr ExpressionParser::parse(bool with_condition) {
  const Deeper deeper(*this);
  return with_condition ? parse_condition() : parse_or();
}

ExpressionPtr ExpressionParser::parse_condition() {
  int line = tokens_.line();
  ExpressionPtr value = parse_or();
  while (tokens_.skip_name("if")) {
    ExpressionPtr node = make(ExpressionKind::kCondition, line);
    add(*node, std::move(value));
    add(*node, parse_or());
    add(*node, tokens_.skip_name("else") ? parse() : nullptr);
    value = std::move(node);
    line = tokens_.line();
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_and();
  if (!tokens_.is_name("or")) return left;
  ExpressionPtr node = unary(ExpressionKind::kOr, line, std::move(left));
  while (tokens_.skip_name("or")) add(*node, parse_and());
  return node;
}

ExpressionPtr ExpressionParser::parse_and() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_not();
  if (!tokens_.is_name("and")) return left;
  ExpressionPtr node = unary(ExpressionKind::kAnd, line, std::move(left));
  while (tokens_.skip_name("and")) add(*node, parse_not());
  return node;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.is_name("not")) return parse_compare();
  const Deeper deeper(*this);
  const int line = tokens_.next().line;
  return unary(ExpressionKind::kNot, line, parse_not());
}

ExpressionPtr ExpressionParser::parse_compare() {
  const int line = tokens_.line();
  ExpressionPtr first = parse_sum();
  ExpressionPtr node;
  while (true) {
    std::optional<Operator> op = find_operator(tokens_.current(), {{"==", Operator::kEqual},
                                                                   {"!=", Operator::kNotEqual},
                                                                   {"<", Operator::kLess},
                                                                   {"<=", Operator::kLessOrEqual},
                                                                   {">", Operator::kGreater},
                                                                   {">=", Operator::kGreaterOrEqual}});
    if (tokens_.is_name("in")) op = Operator::kIn;
    if (tokens_.is_name("not") && tokens_.ahead().kind == TokenKind::kName && tokens_.ahead().text == "in") {
      tokens_.next();
      op = Operator::kNotIn;
    }
    if (!op) break;
    tokens_.next();
    if (!node) node = unary(ExpressionKind::kCompare, line, std::move(first));
    node->operators.push_back(*op);
    add(*node, parse_sum());
  }
  return node ? std::move(node) : std::move(first);
}

ExpressionPtr ExpressionParser::parse_sum() {
  int line = tokens_.line();
  ExpressionPtr left = parse_concatenation();
  while (const auto op = find_operator(tokens_.current(), {{"+", Operator::kAdd}, {"-", Operator::kSubtract}})) {
    tokens_.next();
    left = binary(*op, line, std::move(left), parse_concatenation());
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = tokens_.line();
  ExpressionPtr left = parse_product();
  if (!tokens_.is_operator("~")) return left;
  ExpressionPtr node = unary(ExpressionKind::kConcatenate, line, std::move(left));
  while (tokens_.skip_operator("~")) add(*node, parse_product());
  return node;
}

ExpressionPtr ExpressionParser::parse_product() {
  int line = tokens_.line();
  ExpressionPtr left = parse_unary(true);
  while (const auto op = find_operator(tokens_.current(), {{"*", Operator::kMultiply}, {"%", Operator::kModulo}})) {
    tokens_.next();
    left = binary(*op, line, std::move(left), parse_unary(true));
    line = tokens_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const int line = tokens_.line();
  ExpressionPtr node;
  if (tokens_.is_operator("+")) tokens_.fail(line, unsupported("the sign '+'"));
  if (tokens_.skip_operator("-")) {
    const Deeper deeper(*this);
    node = unary(ExpressionKind::kNegative, line, parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const int line = tokens_.line();
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kText: {
      ExpressionPtr node = make(ExpressionKind::kConstant, line);
      node->constant = Value::text(tokens_.next().text);
      if (!tokens_.is(TokenKind::kText)) return node;
      ExpressionPtr joined = unary(ExpressionKind::kConcatenate, line, std::move(node));
      while (tokens_.is(TokenKind::kText)) {
        ExpressionPtr more = make(ExpressionKind::kConstant, line);
        more->constant = Value::text(tokens_.next().text);
        add(*joined, std::move(more));
      }
      return joined;
    }
    case TokenKind::kInteger: {
      ExpressionPtr node = make(ExpressionKind::kConstant, line);
      node->constant = Value::integer(tokens_.next().number);
      return node;
    }
    case TokenKind::kOperator:
      if (tokens_.is_operator("(")) return parse_parentheses();
      if (tokens_.is_operator("[")) return parse_list();
      if (tokens_.is_operator("{")) return parse_dict();
      break;
    case TokenKind::kData:
    case TokenKind::kVariableBegin:
    case TokenKind::kVariableEnd:
    case TokenKind::kBlockBegin:
    case TokenKind::kBlockEnd:
    case TokenKind::kEnd:
      break;
  }
  tokens_.fail_expected("an expression");
}

ExpressionPtr ExpressionParser::parse_name() {
  const Token& token = tokens_.next();
  const std::string_view name = token.text;
  ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node->constant = Value::boolean(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    node->constant = Value::none();
  } else {
    node->kind = ExpressionKind::kName;
    node->name = name;
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_parentheses() {
  const Deeper deeper(*this);
  const int line = tokens_.next().line;
  if (tokens_.skip_operator(")")) return make(ExpressionKind::kTuple, line);
  ExpressionPtr node = parse_tuple();
  tokens_.expect_operator(")");
  return node;
}

ExpressionPtr ExpressionParser::parse_list() {
  const Deeper deeper(*this);
  ExpressionPtr node = make(ExpressionKind::kList, tokens_.next().line);
  while (!tokens_.is_operator("]")) {
    if (!node->operands.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("]")) break;
    add(*node, parse());
  }
  tokens_.expect_operator("]");
  return node;
}

ExpressionPtr ExpressionParser::parse_dict() {
  const Deeper deeper(*this);
  ExpressionPtr node = make(ExpressionKind::kDict, tokens_.next().line);
  while (!tokens_.is_operator("}")) {
    if (!node->operands.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    add(*node, parse());
    tokens_.expect_operator(":");
    add(*node, parse());
  }
  tokens_.expect_operator("}");
  return node;
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition, std::string_view end) {
  ExpressionPtr tuple;
  ExpressionPtr first;
  const auto ends = [&] {
    return tokens_.is(TokenKind::kVariableEnd) || tokens_.is(TokenKind::kBlockEnd) || tokens_.is_operator(")") ||
           (!end.empty() && tokens_.is_name(end));
  };
  while (!ends()) {
    ExpressionPtr item = parse(with_condition);
    if (tuple)
      add(*tuple, std::move(item));
    else
      first = std::move(item);
    if (!tokens_.is_operator(",")) break;
    if (!tuple) tuple = unary(ExpressionKind::kTuple, tokens_.line(), std::move(first));
    tokens_.next();
  }
  if (!tuple && !first) tokens_.fail_expected("an expression");
  return tuple ? std::move(tuple) : std::move(first);
}

ExpressionPtr ExpressionParser::parse_target(bool with_namespace, std::string_view end) {
  const auto parse_one = [&]() -> ExpressionPtr {
    if (!tokens_.is(TokenKind::kName)) {
      if (tokens_.is_operator("(")) {
        const Deeper deeper(*this);
        tokens_.next();
        ExpressionPtr inner = parse_target(false);
        tokens_.expect_operator(")");
        return inner;
      }
      tokens_.fail_expected("a name to assign to");
    }
    ExpressionPtr node = parse_name();
    if (node->kind != ExpressionKind::kName) tokens_.fail(node->line, "can't assign to a constant");
    if (with_namespace && tokens_.skip_operator(".")) {
      node->kind = ExpressionKind::kNamespaceAttribute;
      ExpressionPtr space = make(ExpressionKind::kName, node->line);
      space->name = node->name;
      node->name = tokens_.expect_name();
      add(*node, std::move(space));
    }
    return node;
  };
  ExpressionPtr first = parse_one();
  if (!tokens_.is_operator(",")) return first;
  const int line = first->line;
  ExpressionPtr tuple = unary(ExpressionKind::kTuple, line, std::move(first));
  while (tokens_.skip_operator(",")) {
    if (tokens_.is(TokenKind::kBlockEnd) || tokens_.is_operator(")") || (!end.empty() && tokens_.is_name(end))) break;
    add(*tuple, parse_one());
  }
  return tuple;
}

}  // namespace lfm2::jinja
