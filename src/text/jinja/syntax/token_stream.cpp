#include "text/jinja/syntax/token_stream.h"

#include <fmt/format.h>

namespace lfm2::jinja {

namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kText:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kName:
    case TokenKind::kOperator:
      return std::string(token.text);
  }
  return "";
}

}  // namespace

void TokenStream::fail_expected(std::string_view expected) const {
  fail(fmt::format("expected {}, got '{}'", expected, describe(current())));
}

std::string_view TokenStream::expect_name() {
  if (!is(TokenKind::kName)) fail_expected("a name");
  return next().text;
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(fmt::format("'{}'", name));
}

void TokenStream::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail_expected(fmt::format("'{}'", op));
}

void TokenStream::expect(TokenKind kind) {
  if (!is(kind)) fail_expected(fmt::format("'{}'", describe({kind, 0, {}})));
  next();
}

}  // namespace lfm2::jinja
