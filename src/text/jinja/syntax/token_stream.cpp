#include "text/jinja/syntax/token_stream.h"

#include <fmt/format.h>

namespace lfm2::jinja {

namespace {

std::string_view describe(const Token& token) {
  // In the order of TokenKind.
  constexpr std::string_view kNames[] = {"template data / text",
                                         "begin of print statement",
                                         "end of print statement",
                                         "begin of statement block",
                                         "end of statement block",
                                         "",
                                         "string",
                                         "integer",
                                         "",
                                         "end of template"};
  const std::string_view name = kNames[static_cast<size_t>(token.kind)];
  return name.empty() ? token.text : name;
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
