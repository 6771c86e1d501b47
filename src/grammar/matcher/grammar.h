// A context-free grammar over bytes and token ids: rules of alternatives and of counted repeats. Its terminals are
// expressions (expression.h), so that all that needs no stack stays in one terminal. Built once by a compiler, then
// read by the matchers of all texts under one constraint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "grammar/expression/expression.h"
#include "text/vocabulary.h"

namespace lfm2::grammar {

enum class RuleId : uint32_t {};

// One element of a sequence: a text of an expression, one token by its id (for special tokens, which have no text),
// or a text of a rule.
struct Symbol {
  enum class Kind : uint8_t { kText, kToken, kRule };
  static Symbol text(Expr expression) { return {Kind::kText, static_cast<uint32_t>(expression)}; }
  static Symbol token(TokenId id) { return {Kind::kToken, static_cast<uint32_t>(id)}; }
  static Symbol rule(RuleId rule) { return {Kind::kRule, static_cast<uint32_t>(rule)}; }

  Expr expression() const { return static_cast<Expr>(value); }
  RuleId rule_id() const { return static_cast<RuleId>(value); }
  bool operator==(const Symbol&) const = default;

  Kind kind;
  uint32_t value;
};
// The texts of its symbols, one after the other. The empty sequence is the empty text.
using Sequence = std::vector<Symbol>;

class Grammar {
 public:
  explicit Grammar(Limits limits = {});

  // The expressions of the terminals. Not thread-safe, and they grow while texts are matched.
  Expressions& expressions() { return *expressions_; }
  const Expressions& expressions() const { return *expressions_; }
  const Limits& limits() const { return limits_; }

  // Declares a rule, so that others can refer to it. Refusal where there are too many.
  RuleId add_rule();
  // A text of the rule is a text of any alternative; without alternatives the rule has no text.
  void set_alternatives(RuleId rule, std::vector<Sequence> alternatives);
  // min to max texts of `item`, with a text of `separator` between neighbours. The count is kept as a number, so its
  // size costs nothing. max may be kNoMax.
  void set_repeat(RuleId rule, Sequence item, Sequence separator, uint32_t min, uint32_t max);
  // The rule of the whole text.
  void set_start(RuleId rule);
  RuleId start_rule() const { return *start_; }

  // Ends the construction: drops what no text can use, so that a matcher never runs into a dead end, and rewrites
  // alternatives that begin with their own rule. Refusal, without pointer and keyword, where the start has no text and
  // where rules begin with each other. Rules may be added afterwards, around the old start for example; then finish()
  // is called again.
  void finish();

  // ---- The finished grammar, as matchers read it ----
  // All sequences in one array, each followed by a symbol that ends it.
  struct Step {
    enum class Kind : uint8_t { kText, kToken, kCall, kEnd, kItemEnd, kSeparatorEnd };
    Kind kind;
    uint32_t value;  // Expr, TokenId or index of a rule; of kItemEnd and kSeparatorEnd, the repeat's rule
  };
  struct Rule {
    enum class Kind : uint8_t { kUndefined, kAlternatives, kRepeat };
    Kind kind = Kind::kUndefined;
    std::vector<Sequence> sequences;  // kRepeat: item, separator
    uint32_t min = 0, max = 0;        // kRepeat
    bool nullable = false;            // has the empty text; set by finish()
    std::vector<uint32_t> starts;     // where each sequence begins in steps(); set by finish()
  };
  // steps()[0] is a kEnd of no sequence.
  const std::vector<Step>& steps() const { return steps_; }
  const Rule& rule(uint32_t index) const { return rules_[index]; }
  uint32_t start() const { return static_cast<uint32_t>(*start_); }
  bool finished() const { return !steps_.empty(); }

 private:
  Rule& declared(RuleId rule);
  void rewrite_left_recursion(uint32_t index);
  void emit(const std::vector<bool>& reachable);

  Limits limits_;
  std::unique_ptr<Expressions> expressions_;
  std::vector<Rule> rules_;
  std::optional<RuleId> start_;
  std::vector<Step> steps_;
};

}  // namespace lfm2::grammar
