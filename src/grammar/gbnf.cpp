#include "grammar/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/expression/refusal.h"
#include "grammar/expression/text_set.h"
#include "grammar/gbnf_lexer.h"

namespace lfm2::grammar {
namespace {

class GbnfReader {
 public:
  GbnfReader(std::string_view text, Limits limits) : lexer_(text), grammar_(limits) {}

  Grammar read() {
    for (lexer_.skip_blanks(true); !lexer_.at_end(); lexer_.skip_blanks(true)) read_rule();
    for (const auto& [name, rule] : rules_)
      if (!defined_.contains(name))
        throw Refusal("", "grammar", fmt::format("no rule `{}`, which another one refers to", name),
                      "a rule of each name");
    if (!defined_.contains("root")) throw Refusal("", "grammar", "no rule `root`", "one, for the whole text");
    grammar_.set_start(rules_.find("root")->second);
    grammar_.finish();
    return std::move(grammar_);
  }

 private:
  // Parts without rules become expressions, since these need no stack; others become rules without a name.
  Expressions& expressions() { return grammar_.expressions(); }

  RuleId named(const std::string& name) {
    const auto [found, added] = rules_.try_emplace(name);
    if (added) found->second = grammar_.add_rule();
    return found->second;
  }

  Symbol rule_of(std::vector<Sequence> alternatives) {
    const RuleId rule = grammar_.add_rule();
    grammar_.set_alternatives(rule, std::move(alternatives));
    return Symbol::rule(rule);
  }

  void read_rule() {
    const std::string name(lexer_.name());
    if (name.empty()) lexer_.refuse("the name of a rule");
    lexer_.skip_blanks(false);
    if (!lexer_.consume("::=")) lexer_.refuse("::=");
    if (!defined_.insert(name).second)
      throw Refusal("", "grammar", fmt::format("the rule `{}` twice", name), "each rule once");
    lexer_.skip_blanks(true);
    const RuleId rule = named(name);
    grammar_.set_alternatives(rule, read_alternatives(0));
    if (!lexer_.at_end() && lexer_.peek() != '\n') lexer_.refuse("|, or the end of the line");
  }

  std::vector<Sequence> read_alternatives(uint32_t depth) {
    if (depth > grammar_.limits().depth) lexer_.refuse("fewer groups inside each other");
    std::vector<Sequence> alternatives;
    for (;;) {
      alternatives.push_back(read_sequence(depth));
      if (depth == 0) lexer_.skip_to_alternative();
      if (!lexer_.consume("|")) return merged(std::move(alternatives));
      lexer_.skip_blanks(true);
    }
  }

  // Alternatives that are texts become one, so that a matcher follows them as one.
  std::vector<Sequence> merged(std::vector<Sequence> alternatives) {
    std::vector<Expr> texts;
    std::erase_if(alternatives, [&](const Sequence& one) {
      const bool is_one_text = one.empty() || (one.size() == 1 && is_text(one.front()));
      if (is_one_text) texts.push_back(one.empty() ? expressions().empty() : one.front().expression());
      return is_one_text;
    });
    if (!texts.empty()) alternatives.push_back({Symbol::text(expressions().either(texts))});
    return alternatives;
  }

  Sequence read_sequence(uint32_t depth) {
    Sequence sequence;
    for (;;) {
      std::optional<Symbol> symbol = read_symbol(depth);
      if (!symbol) return sequence;
      lexer_.skip_blanks(depth > 0);
      while (const auto counts = read_counts()) {
        symbol = repeated(*symbol, counts->first, counts->second);
        lexer_.skip_blanks(depth > 0);
      }
      if (!sequence.empty() && is_text(sequence.back()) && is_text(*symbol))
        sequence.back() = Symbol::text(expressions().concat(sequence.back().expression(), symbol->expression()));
      else
        sequence.push_back(*symbol);
    }
  }

  static bool is_text(const Symbol& symbol) { return symbol.kind == Symbol::Kind::kText; }

  std::optional<Symbol> read_symbol(uint32_t depth) {
    if (lexer_.consume("\"")) return Symbol::text(read_text());
    if (lexer_.consume("[")) return Symbol::text(read_class());
    if (lexer_.consume(".")) return Symbol::text(lower(length(1, 1), Spelling::kRaw, expressions()));
    if (lexer_.consume("(")) return read_group(depth);
    if (lexer_.peek() == '<' || lexer_.peek() == '!') lexer_.refuse("characters: tokens by name or id have no text");
    const std::string name(lexer_.name());
    if (name.empty()) return std::nullopt;
    return Symbol::rule(named(name));
  }

  Symbol read_group(uint32_t depth) {
    lexer_.skip_blanks(true);
    std::vector<Sequence> alternatives = read_alternatives(depth + 1);
    if (!lexer_.consume(")")) lexer_.refuse(")");
    if (alternatives.size() == 1 && alternatives.front().size() == 1) return alternatives.front().front();
    return rule_of(std::move(alternatives));
  }

  Expr read_text() {
    std::string bytes;
    while (!lexer_.consume("\"")) {
      if (lexer_.at_end() || lexer_.peek() == '\n') lexer_.refuse("the \" that closes a text");
      append_utf8(bytes, lexer_.character());
    }
    return expressions().text(bytes);
  }

  Expr read_class() {
    const bool others = lexer_.consume("^");
    CodePointSet points;
    while (!lexer_.consume("]")) {
      if (lexer_.at_end() || lexer_.peek() == '\n') lexer_.refuse("the ] that closes a class");
      const uint32_t first = lexer_.character();
      uint32_t last = first;
      if (lexer_.consume("-")) {
        if (lexer_.peek() == ']') {
          points = united(std::move(points), {{'-', '-'}});
        } else {
          last = lexer_.character();
          if (last < first) lexer_.refuse("a range that does not go backwards");
        }
      }
      points = united(std::move(points), {{first, last}});
    }
    return lower(one_of(others ? complement(points) : points), Spelling::kRaw, expressions());
  }

  // The counts of * + ? {n} {n,} {n,m}, where one of them comes next.
  std::optional<std::pair<uint32_t, uint32_t>> read_counts() {
    if (lexer_.consume("*")) return std::pair(0u, kNoMax);
    if (lexer_.consume("+")) return std::pair(1u, kNoMax);
    if (lexer_.consume("?")) return std::pair(0u, 1u);
    if (!lexer_.consume("{")) return std::nullopt;
    lexer_.skip_blanks(true);
    const uint32_t min = lexer_.number();
    uint32_t max = min;
    lexer_.skip_blanks(true);
    if (lexer_.consume(",")) {
      lexer_.skip_blanks(true);
      max = lexer_.peek() == '}' ? kNoMax : lexer_.number();
      lexer_.skip_blanks(true);
    }
    if (!lexer_.consume("}")) lexer_.refuse("}");
    if (min > max) lexer_.refuse("a smallest number that is not above the largest one");
    return std::pair(min, max);
  }

  Symbol repeated(const Symbol& symbol, uint32_t min, uint32_t max) {
    if (is_text(symbol)) return Symbol::text(expressions().repeat(symbol.expression(), min, max));
    const RuleId rule = grammar_.add_rule();
    grammar_.set_repeat(rule, {symbol}, {}, min, max);
    return Symbol::rule(rule);
  }

  GbnfLexer lexer_;
  Grammar grammar_;
  std::map<std::string, RuleId, std::less<>> rules_;
  std::set<std::string, std::less<>> defined_;
};

}  // namespace

Grammar gbnf_grammar(std::string_view text, Limits limits) {
  try {
    if (text.size() > limits.text_bytes)
      throw Refusal("", "", fmt::format("{} bytes", text.size()), fmt::format("at most {}", limits.text_bytes));
    return GbnfReader(text, limits).read();
  } catch (const Refusal& refusal) {
    throw refusal.at("", "grammar");
  }
}

}  // namespace lfm2::grammar
