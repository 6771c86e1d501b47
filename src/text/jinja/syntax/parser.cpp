// Parses statements; expressions are the ExpressionParser's.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "base/utf8.h"
#include "text/jinja/syntax/expression_parser.h"
#include "text/jinja/syntax/token_stream.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr int kMaxBlockDepth = 100;

class Parser {
 public:
  explicit Parser(Source& source) : tokens_(source), expressions_(tokens_) {}

  Body parse() { return parse_body({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // The statements up to one of the tags that end them, which is then the current token, or up to the template's end.
  Body parse_body(Ends ends);
  // The same after an opening tag, whose end is parsed here. Refuses the template's end.
  Body parse_inside(Ends ends);
  Body parse_until(std::string_view end) {
    Body body = parse_inside({end});
    tokens_.next();
    return body;
  }
  StatementPtr parse_statement();
  StatementPtr parse_if();
  StatementPtr parse_for();
  StatementPtr parse_set();
  StatementPtr parse_macro();
  StatementPtr parse_call_block();
  StatementPtr parse_filter_block();
  StatementPtr parse_generation();
  StatementPtr parse_jump(StatementKind kind);
  void parse_parameters(FunctionSyntax& function);

  StatementPtr make(StatementKind kind, int line) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }
  // A body in which break and continue do not reach the loop around it.
  template <class Parse>
  auto apart(Parse&& parse) {
    const bool before = std::exchange(in_loop_, false);
    auto result = parse();
    in_loop_ = before;
    return result;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  bool in_loop_ = false;
};

Body Parser::parse_body(Ends ends) {
  if (++depth_ > kMaxBlockDepth) tokens_.fail(fmt::format("blocks nested deeper than {} levels", kMaxBlockDepth));
  Body body;
  StatementPtr output;
  const auto print = [&](ExpressionPtr expression) {
    if (!output) output = make(StatementKind::kOutput, expression->line);
    output->expressions.push_back(std::move(expression));
  };
  const auto flush = [&] {
    if (output) body.push_back(std::move(output));
  };
  while (!tokens_.is(TokenKind::kEnd)) {
    const Token& token = tokens_.next();
    if (token.kind == TokenKind::kData) {
      auto text = std::make_unique<Expression>();
      text->kind = ExpressionKind::kConstant;
      text->line = token.line;
      text->constant = Value::text(token.text);
      print(std::move(text));
    } else if (token.kind == TokenKind::kVariableBegin) {
      print(expressions_.parse_tuple());
      tokens_.expect(TokenKind::kVariableEnd);
    } else {  // the lexer returns nothing else outside of tags
      flush();
      const Token& tag = tokens_.current();
      if (tag.kind == TokenKind::kName && std::find(ends.begin(), ends.end(), tag.text) != ends.end()) break;
      body.push_back(parse_statement());
      tokens_.expect(TokenKind::kBlockEnd);
    }
  }
  flush();
  --depth_;
  return body;
}

Body Parser::parse_inside(Ends ends) {
  const int line = tokens_.line();
  tokens_.skip_operator(":");
  tokens_.expect(TokenKind::kBlockEnd);
  Body body = parse_body(ends);
  if (tokens_.is(TokenKind::kEnd))
    tokens_.fail(line, fmt::format("the template ends before '{}'", *std::prev(ends.end())));
  return body;
}

StatementPtr Parser::parse_statement() {
  const Token& token = tokens_.current();
  if (token.kind != TokenKind::kName) tokens_.fail_expected("the name of a tag");
  tokens_.next();
  const std::string_view tag = token.text;
  if (tag == "if") return parse_if();
  if (tag == "for") return parse_for();
  if (tag == "set") return parse_set();
  if (tag == "macro") return apart([&] { return parse_macro(); });
  if (tag == "call") return apart([&] { return parse_call_block(); });
  if (tag == "filter") return apart([&] { return parse_filter_block(); });
  if (tag == "generation") return apart([&] { return parse_generation(); });
  if (tag == "break") return parse_jump(StatementKind::kBreak);
  if (tag == "continue") return parse_jump(StatementKind::kContinue);
  tokens_.fail(token.line, unknown(Naming::kTag, tag));
}

StatementPtr Parser::parse_if() {
  StatementPtr statement = make(StatementKind::kIf, tokens_.line());
  while (true) {
    statement->expressions.push_back(expressions_.parse_tuple(false));
    statement->bodies.push_back(parse_inside({"elif", "else", "endif"}));
    const std::string_view tag = tokens_.next().text;
    if (tag == "elif") continue;
    if (tag == "else") statement->otherwise = parse_until("endif");
    return statement;
  }
}

StatementPtr Parser::parse_for() {
  StatementPtr statement = make(StatementKind::kFor, tokens_.line());
  statement->target = expressions_.parse_target(false, "in");
  tokens_.expect_name("in");
  statement->expressions.push_back(expressions_.parse_tuple(false, "recursive"));
  if (tokens_.skip_name("if")) statement->condition = expressions_.parse();
  if (tokens_.is_name("recursive")) tokens_.fail(unsupported("a recursive loop"));
  const bool outer = std::exchange(in_loop_, true);
  statement->bodies.push_back(parse_inside({"endfor", "else"}));
  in_loop_ = outer;
  if (tokens_.next().text == "else") statement->otherwise = parse_until("endfor");
  return statement;
}

StatementPtr Parser::parse_set() {
  const int line = tokens_.line();
  ExpressionPtr target = expressions_.parse_target(true);
  if (tokens_.skip_operator("=")) {
    StatementPtr statement = make(StatementKind::kSet, line);
    statement->target = std::move(target);
    statement->expressions.push_back(expressions_.parse_tuple());
    return statement;
  }
  return apart([&] {
    StatementPtr statement = make(StatementKind::kSetBlock, line);
    statement->target = std::move(target);
    if (tokens_.is_operator("|")) tokens_.fail(unsupported("a filter of a 'set' block"));
    statement->bodies.push_back(parse_until("endset"));
    return statement;
  });
}

void Parser::parse_parameters(FunctionSyntax& function) {
  tokens_.expect_operator("(");
  while (!tokens_.is_operator(")")) {
    if (!function.parameters.empty()) tokens_.expect_operator(",");
    const int line = tokens_.line();
    const std::string_view name = tokens_.expect_name();
    if (std::find(function.parameters.begin(), function.parameters.end(), name) != function.parameters.end())
      tokens_.fail(line, fmt::format("two parameters are named '{}'", name));
    if (name == "caller") tokens_.fail(line, unsupported("a parameter named 'caller'"));
    if (function.parameters.size() == kMaxNamedArguments)
      tokens_.fail(line, fmt::format("more than {} parameters", kMaxNamedArguments));
    function.parameters.push_back(name);
    if (tokens_.skip_operator("="))
      function.defaults.push_back(expressions_.parse());
    else if (!function.defaults.empty())
      tokens_.fail(line, "non-default argument follows default argument");
  }
  tokens_.next();
}

StatementPtr Parser::parse_macro() {
  StatementPtr statement = make(StatementKind::kMacro, tokens_.line());
  statement->function = std::make_unique<FunctionSyntax>();
  statement->function->name = tokens_.expect_name();
  parse_parameters(*statement->function);
  statement->function->body = parse_until("endmacro");
  return statement;
}

StatementPtr Parser::parse_call_block() {
  StatementPtr statement = make(StatementKind::kCallBlock, tokens_.line());
  statement->function = std::make_unique<FunctionSyntax>();
  statement->function->name = "caller";
  if (tokens_.is_operator("(")) parse_parameters(*statement->function);
  ExpressionPtr call = expressions_.parse();
  if (call->kind != ExpressionKind::kCall) tokens_.fail(statement->line, "expected call");
  statement->expressions.push_back(std::move(call));
  statement->function->body = parse_until("endcall");
  return statement;
}

StatementPtr Parser::parse_filter_block() {
  StatementPtr statement = make(StatementKind::kFilterBlock, tokens_.line());
  statement->expressions.push_back(expressions_.parse_filters(nullptr, true));
  statement->bodies.push_back(parse_until("endfilter"));
  return statement;
}

StatementPtr Parser::parse_generation() {
  StatementPtr statement = make(StatementKind::kGeneration, tokens_.line());
  statement->function = std::make_unique<FunctionSyntax>();
  statement->function->name = "generation";
  if (!tokens_.is(TokenKind::kBlockEnd)) tokens_.fail_expected("the end of the tag 'generation'");
  statement->function->body = parse_until("endgeneration");
  return statement;
}

StatementPtr Parser::parse_jump(StatementKind kind) {
  if (!in_loop_) tokens_.fail(unsupported("'break' or 'continue' that is not directly within a loop"));
  return make(kind, tokens_.line());
}

}  // namespace

std::unique_ptr<Template> parse_template(std::string_view text, std::string what) {
  auto result = std::make_unique<Template>();
  Source& source = result->source;
  source.what = std::move(what);
  if (text.size() > kMaxTemplateBytes)
    fail_at(source, 1, fmt::format("a template of {} bytes, at most {}", text.size(), kMaxTemplateBytes));
  if (!is_utf8(text)) fail_at(source, 1, "a template that is not UTF-8");
  source.text = text;
  result->root.body = Parser(source).parse();
  resolve_names(*result);
  return result;
}

}  // namespace lfm2::jinja
