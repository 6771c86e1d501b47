// Parses expressions, with the precedence that Jinja gives its operators.
#pragma once

#include "text/jinja/syntax/token_stream.h"
#include "text/jinja/syntax/tree.h"

namespace lfm2::jinja {

inline constexpr int kMaxSyntaxDepth = 250;
inline constexpr size_t kMaxNamedArguments = 255;  // of a call, and parameters of a macro

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr parse(bool with_condition = true);
  // Parses one expression, or a tuple of expressions separated by commas, up to the name `end`.
  ExpressionPtr parse_tuple(bool with_condition = true, std::string_view end = {});
  // Parses the target of an assignment: a name, a tuple of names or, with `with_namespace`, an attribute of a
  // namespace.
  ExpressionPtr parse_target(bool with_namespace, std::string_view end = {});
  ExpressionPtr parse_filters(ExpressionPtr operand, bool first_without_pipe);

 private:
  ExpressionPtr parse_condition();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_parentheses();
  ExpressionPtr parse_postfix(ExpressionPtr operand);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr operand);
  ExpressionPtr parse_subscript(ExpressionPtr operand);
  ExpressionPtr parse_test(ExpressionPtr operand);
  std::unique_ptr<CallSyntax> parse_arguments();
  ExpressionPtr parse_call(ExpressionPtr callee);

  ExpressionPtr make(ExpressionKind kind, int line) const;
  void add(Expression& node, ExpressionPtr operand) const;  // counts the depth
  ExpressionPtr unary(ExpressionKind kind, int line, ExpressionPtr operand) const;
  ExpressionPtr binary(Operator op, int line, ExpressionPtr left, ExpressionPtr right) const;
  void finish_call(Expression& node, std::unique_ptr<CallSyntax> call) const;
  void check_depth(int depth) const;  // refuses too deep nesting

  // Counts one level of nesting during its lifetime.
  class Deeper {
   public:
    explicit Deeper(ExpressionParser& parser) : depth_(parser.depth_) { parser.check_depth(++depth_); }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace lfm2::jinja
