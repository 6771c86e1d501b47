// The tokens of a template under the parser's cursor.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/syntax/lexer.h"

namespace lfm2::jinja {

class TokenStream {
 public:
  explicit TokenStream(Source& source) : source_(source), tokens_(tokenize(source)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  const Token& next() {  // returns the current one and advances
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is(TokenKind kind, std::string_view text) const { return is(kind) && current().text == text; }
  bool is_name(std::string_view name) const { return is(TokenKind::kName, name); }
  bool is_operator(std::string_view op) const { return is(TokenKind::kOperator, op); }
  bool skip_name(std::string_view name) { return skip(is_name(name)); }
  bool skip_operator(std::string_view op) { return skip(is_operator(op)); }

  std::string_view expect_name();
  void expect_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect(TokenKind kind);

  [[noreturn]] void fail(const std::string& message) const { fail_at(source_, line(), message); }
  [[noreturn]] void fail(int line, const std::string& message) const { fail_at(source_, line, message); }
  [[noreturn]] void fail_expected(std::string_view expected) const;

 private:
  bool skip(bool matches) {
    if (matches) next();
    return matches;
  }

  Source& source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace lfm2::jinja
