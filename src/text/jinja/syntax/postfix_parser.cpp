// What follows a value in an expression: subscripts, calls, filters and tests.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/syntax/expression_parser.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr operand) {
  while (true) {
    if (tokens_.is_operator(".") || tokens_.is_operator("["))
      operand = parse_subscript(std::move(operand));
    else if (tokens_.is_operator("("))
      operand = parse_call(std::move(operand));
    else
      return operand;
  }
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr operand) {
  while (true) {
    if (tokens_.is_operator("|"))
      operand = parse_filters(std::move(operand), false);
    else if (tokens_.is_name("is"))
      operand = parse_test(std::move(operand));
    else if (tokens_.is_operator("("))
      operand = parse_call(std::move(operand));
    else
      return operand;
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr operand) {
  const Token& token = tokens_.next();
  if (token.text == ".") {
    ExpressionPtr node = make(ExpressionKind::kAttribute, token.line);
    add(*node, std::move(operand));
    if (tokens_.is(TokenKind::kInteger)) {
      node->kind = ExpressionKind::kItem;
      add(*node, parse_primary());
      return node;
    }
    if (!tokens_.is(TokenKind::kName)) tokens_.fail_expected("a name or number");
    node->name = tokens_.next().text;
    if (node->name.starts_with("__"))
      tokens_.fail(token.line, unsupported(fmt::format("the attribute '{}'", node->name)));
    return node;
  }
  const auto ends = [&] { return tokens_.is_operator("]") || tokens_.is_operator(","); };
  ExpressionPtr node = make(ExpressionKind::kItem, token.line);
  add(*node, std::move(operand));
  ExpressionPtr first = tokens_.is_operator(":") ? nullptr : parse();
  if (tokens_.is_operator(":")) {
    node->kind = ExpressionKind::kSlice;
    add(*node, std::move(first));
    for (int part = 0; part < 2; ++part)
      add(*node, tokens_.skip_operator(":") && !ends() && !tokens_.is_operator(":") ? parse() : nullptr);
  } else {
    add(*node, std::move(first));
  }
  if (tokens_.is_operator(",")) tokens_.fail(unsupported("a tuple as subscript"));
  tokens_.expect_operator("]");
  return node;
}

std::unique_ptr<CallSyntax> ExpressionParser::parse_arguments() {
  check_depth(depth_ + 1);
  const int line = tokens_.line();
  auto call = std::make_unique<CallSyntax>();
  tokens_.expect_operator("(");
  for (bool comma = false; !tokens_.is_operator(")"); comma = true) {
    if (comma) {
      tokens_.expect_operator(",");
      if (tokens_.is_operator(")")) break;
    }
    if (tokens_.skip_operator("*")) {
      if (call->more_positional) tokens_.fail(line, "invalid syntax for function call expression");
      call->more_positional = parse();
    } else if (tokens_.is(TokenKind::kName) && tokens_.ahead().kind == TokenKind::kOperator &&
               tokens_.ahead().text == "=") {
      const std::string_view name = tokens_.next().text;
      tokens_.next();
      if (call->keyword.size() == kMaxNamedArguments)
        tokens_.fail(line, fmt::format("more than {} arguments with names", kMaxNamedArguments));
      call->keyword.emplace_back(name, parse());
    } else {
      if (!call->keyword.empty() || call->more_positional)
        tokens_.fail(line, "invalid syntax for function call expression");
      call->positional.push_back(parse());
    }
  }
  tokens_.expect_operator(")");
  return call;
}

void ExpressionParser::finish_call(Expression& node, std::unique_ptr<CallSyntax> call) const {
  const auto deepen = [&](const ExpressionPtr& argument) {
    if (argument) node.depth = std::max(node.depth, argument->depth + 1);
  };
  for (const ExpressionPtr& argument : call->positional) deepen(argument);
  for (const auto& [name, argument] : call->keyword) deepen(argument);
  deepen(call->more_positional);
  check_depth(node.depth);
  node.call = std::move(call);
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = tokens_.line();
  ExpressionPtr node = unary(ExpressionKind::kCall, line, std::move(callee));
  finish_call(*node, parse_arguments());
  return node;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr operand, bool first_without_pipe) {
  while (first_without_pipe || tokens_.skip_operator("|")) {
    first_without_pipe = false;
    const int line = tokens_.line();
    const std::string_view name = tokens_.expect_name();
    if (tokens_.is_operator(".")) tokens_.fail(line, fmt::format("No filter named '{}.'", name));
    ExpressionPtr node = make(ExpressionKind::kFilter, line);
    add(*node, std::move(operand));
    node->name = name;
    node->filter = find_filter(name);
    if (node->filter == nullptr && is_unsupported(Naming::kFilter, name))
      tokens_.fail(line, unsupported(Naming::kFilter, name));
    finish_call(*node, tokens_.is_operator("(") ? parse_arguments() : std::make_unique<CallSyntax>());
    operand = std::move(node);
  }
  return operand;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const int line = tokens_.next().line;
  const bool negated = tokens_.skip_name("not");
  ExpressionPtr node = unary(ExpressionKind::kTest, line, std::move(operand));
  node->name = tokens_.expect_name();
  node->test = find_test(node->name);
  if (node->test == nullptr && is_unsupported(Naming::kTest, node->name))
    tokens_.fail(line, unsupported(Naming::kTest, node->name));
  if (tokens_.is_operator(".")) tokens_.fail(line, fmt::format("No test named '{}.'", node->name));
  auto call = std::make_unique<CallSyntax>();
  const bool name =
      tokens_.is(TokenKind::kName) && !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and");
  if (tokens_.is_operator("(")) {
    call = parse_arguments();
  } else if (name || tokens_.is(TokenKind::kText) || tokens_.is(TokenKind::kInteger) || tokens_.is_operator("[") ||
             tokens_.is_operator("{")) {
    if (tokens_.is_name("is")) tokens_.fail("You cannot chain multiple tests with is");
    call->positional.push_back(parse_postfix(parse_primary()));
  }
  finish_call(*node, std::move(call));
  return negated ? unary(ExpressionKind::kNot, line, std::move(node)) : std::move(node);
}

}  // namespace lfm2::jinja
