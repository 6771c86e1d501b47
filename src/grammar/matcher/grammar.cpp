#include "grammar/matcher/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "grammar/matcher/grammar_analysis.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxSymbols = 4'000'000;

bool begins_with(const Sequence& sequence, RuleId rule) {
  return !sequence.empty() && sequence.front() == Symbol::rule(rule);
}

}  // namespace

Grammar::Grammar(Limits limits) : limits_(limits), expressions_(std::make_unique<Expressions>(limits)) {}

RuleId Grammar::add_rule() {
  if (rules_.size() >= limits_.max_rules)
    throw Refusal("", "", "more rules", fmt::format("at most {} rules of the grammar", limits_.max_rules));
  steps_.clear();
  rules_.emplace_back();
  return static_cast<RuleId>(rules_.size() - 1);
}

Grammar::Rule& Grammar::declared(RuleId rule) {
  const auto index = static_cast<size_t>(rule);
  expect(index < rules_.size(), "a rule is set that is not of this grammar");
  expect(rules_[index].kind == Rule::Kind::kUndefined, "a rule is set twice");
  return rules_[index];
}

void Grammar::set_start(RuleId rule) {
  steps_.clear();
  start_ = rule;
}

void Grammar::set_alternatives(RuleId rule, std::vector<Sequence> alternatives) {
  Rule& set = declared(rule);
  set.kind = Rule::Kind::kAlternatives;
  set.sequences = std::move(alternatives);
}

void Grammar::set_repeat(RuleId rule, Sequence item, Sequence separator, uint32_t min, uint32_t max) {
  Rule& set = declared(rule);
  if (min > max) {
    set.kind = Rule::Kind::kAlternatives;  // of which there are none
    return;
  }
  set.kind = Rule::Kind::kRepeat;
  set.sequences = {std::move(item), std::move(separator)};
  set.min = min;
  set.max = max;
}

void Grammar::finish() {
  expect(start_.has_value() && !finished(), "a grammar is finished without a start, or twice");
  const auto has_text = [&](const Symbol& symbol) {
    return symbol.kind != Symbol::Kind::kText || expressions_->possible(symbol.expression());
  };
  const auto nullable = [&](const Symbol& symbol) {
    return symbol.kind == Symbol::Kind::kText && expressions_->nullable(symbol.expression());
  };
  const std::vector<bool> possible = rules_with(rules_, has_text);
  if (!possible[start()]) throw Refusal("", "", "a grammar without any text", "one that has a text");
  for (uint32_t index = 0; index < rules_.size(); ++index) {
    Rule& rule = rules_[index];
    if (rule.kind != Rule::Kind::kRepeat) {
      std::erase_if(rule.sequences, [&](const Sequence& one) { return !sequence_has(one, possible, has_text); });
      continue;
    }
    if (!sequence_has(rule.sequences[0], possible, has_text)) {
      rule.sequences[0].clear();  // of a rule that has a text: of no item
      rule.max = 0;
    }
    if (!sequence_has(rule.sequences[1], possible, has_text)) {
      rule.sequences[1].clear();
      rule.max = std::min(rule.max, 1u);
    }
  }
  // Rewriting adds rules, which are not rewritten themselves.
  for (uint32_t index = 0, end = static_cast<uint32_t>(rules_.size()); index < end; ++index)
    rewrite_left_recursion(index);
  const std::vector<bool> has_empty = rules_with(rules_, nullable);
  for (uint32_t index = 0; index < rules_.size(); ++index) {
    Rule& rule = rules_[index];
    rule.nullable = has_empty[index];
    const auto empty = [&](const Sequence& one) { return sequence_has(one, has_empty, nullable); };
    if (rule.kind == Rule::Kind::kRepeat && std::all_of(rule.sequences.begin(), rule.sequences.end(), empty))
      rule.min = 0;
  }
  if (left_recursive_rule(start(), rules_, nullable))
    throw Refusal("", "", "rules that begin with each other", "rules that begin with a character, sooner or later");
  emit(reachable_from(start(), rules_));
}

// A = A t | A u | b | c  becomes  A = b R | c R,  R = repeat(T, 0, no maximum),  T = t | u.
void Grammar::rewrite_left_recursion(uint32_t index) {
  const auto self = static_cast<RuleId>(index);
  if (rules_[index].kind != Rule::Kind::kAlternatives) return;
  std::vector<Sequence> tails, others;
  for (Sequence& sequence : rules_[index].sequences) {
    if (!begins_with(sequence, self))
      others.push_back(std::move(sequence));
    else if (sequence.size() > 1)  // A = A says nothing
      tails.emplace_back(sequence.begin() + 1, sequence.end());
  }
  if (!tails.empty()) {
    const RuleId tail = add_rule(), more = add_rule();
    set_alternatives(tail, std::move(tails));
    set_repeat(more, {Symbol::rule(tail)}, {}, 0, kNoMax);
    for (Sequence& sequence : others) sequence.push_back(Symbol::rule(more));
  }
  rules_[index].sequences = std::move(others);
}

void Grammar::emit(const std::vector<bool>& reachable) {
  steps_.push_back({Step::Kind::kEnd, 0});
  for (uint32_t index = 0; index < rules_.size(); ++index) {
    Rule& rule = rules_[index];
    rule.starts.clear();
    if (!reachable[index]) continue;
    for (uint32_t i = 0; i < rule.sequences.size(); ++i) {
      rule.starts.push_back(static_cast<uint32_t>(steps_.size()));
      for (const Symbol& symbol : rule.sequences[i]) {
        const bool call = symbol.kind == Symbol::Kind::kRule;
        const bool text = symbol.kind == Symbol::Kind::kText;
        steps_.push_back({call ? Step::Kind::kCall : text ? Step::Kind::kText : Step::Kind::kToken, symbol.value});
      }
      const bool repeat = rule.kind == Rule::Kind::kRepeat;
      steps_.push_back({!repeat ? Step::Kind::kEnd : i == 0 ? Step::Kind::kItemEnd : Step::Kind::kSeparatorEnd, index});
    }
    if (steps_.size() > kMaxSymbols)
      throw Refusal("", "", "more symbols", fmt::format("at most {} symbols of the grammar", kMaxSymbols));
  }
}

}  // namespace lfm2::grammar
