#include "grammar/matcher/grammar_analysis.h"

#include <algorithm>

namespace lfm2::grammar {
namespace {

using Rule = Grammar::Rule;

uint32_t index_of(const Symbol& symbol) { return static_cast<uint32_t>(symbol.rule_id()); }
bool is_rule(const Symbol& symbol) { return symbol.kind == Symbol::Kind::kRule; }

// The rules that may stand first in a text of the rule.
std::vector<uint32_t> beginnings(const Rule& rule, const std::vector<Rule>& rules,
                                 const std::function<bool(const Symbol&)>& nullable) {
  std::vector<uint32_t> found;
  const auto nullable_symbol = [&](const Symbol& symbol) {
    return is_rule(symbol) ? rules[index_of(symbol)].nullable : nullable(symbol);
  };
  for (const Sequence& sequence : rule.sequences) {
    const auto end = std::find_if_not(sequence.begin(), sequence.end(), nullable_symbol);
    for (auto symbol = sequence.begin(); symbol != sequence.end(); ++symbol) {
      if (is_rule(*symbol)) found.push_back(index_of(*symbol));
      if (symbol == end) break;
    }
    // A repeat begins with its separator only after an empty item.
    if (rule.kind == Rule::Kind::kRepeat && end != sequence.end()) break;
  }
  return found;
}

}  // namespace

std::vector<bool> rules_with(const std::vector<Rule>& rules, const std::function<bool(const Symbol&)>& holds) {
  struct Open {
    uint32_t rule, sequence, left;  // symbols that are not known to have it
  };
  std::vector<Open> open;
  std::vector<std::vector<uint32_t>> uses(rules.size());  // of each rule, in `open`
  std::vector<std::vector<bool>> done(rules.size());      // of each rule, its sequences
  std::vector<bool> has(rules.size(), false);
  std::vector<uint32_t> found;  // rules whose uses are to be counted

  const auto update = [&](uint32_t index) {
    const Rule& rule = rules[index];
    if (has[index]) return;
    const std::vector<bool>& sequences = done[index];
    if (rule.kind == Rule::Kind::kRepeat)
      has[index] = rule.min == 0 || (sequences[0] && (rule.min == 1 || sequences[1]));
    else
      has[index] = std::find(sequences.begin(), sequences.end(), true) != sequences.end();
    if (has[index]) found.push_back(index);
  };
  for (uint32_t index = 0; index < rules.size(); ++index) {
    done[index].resize(rules[index].sequences.size());
    for (uint32_t i = 0; i < rules[index].sequences.size(); ++i) {
      Open one{index, i, 0};
      for (const Symbol& symbol : rules[index].sequences[i]) {
        if (!is_rule(symbol) && holds(symbol)) continue;
        ++one.left;
        if (is_rule(symbol)) uses[index_of(symbol)].push_back(static_cast<uint32_t>(open.size()));
      }
      done[index][i] = one.left == 0;
      open.push_back(one);
    }
  }
  for (uint32_t index = 0; index < rules.size(); ++index) update(index);
  while (!found.empty()) {
    const uint32_t rule = found.back();
    found.pop_back();
    for (const uint32_t use : uses[rule]) {
      if (--open[use].left > 0) continue;
      done[open[use].rule][open[use].sequence] = true;
      update(open[use].rule);
    }
  }
  return has;
}

bool sequence_has(const Sequence& sequence, const std::vector<bool>& rules,
                  const std::function<bool(const Symbol&)>& holds) {
  return std::all_of(sequence.begin(), sequence.end(),
                     [&](const Symbol& symbol) { return is_rule(symbol) ? rules[index_of(symbol)] : holds(symbol); });
}

std::vector<bool> reachable_from(uint32_t start, const std::vector<Rule>& rules) {
  std::vector<bool> reached(rules.size(), false);
  std::vector<uint32_t> open = {start};
  reached[start] = true;
  while (!open.empty()) {
    const Rule& rule = rules[open.back()];
    open.pop_back();
    for (const Sequence& sequence : rule.sequences) {
      for (const Symbol& symbol : sequence) {
        if (!is_rule(symbol) || reached[index_of(symbol)]) continue;
        reached[index_of(symbol)] = true;
        open.push_back(index_of(symbol));
      }
    }
  }
  return reached;
}

std::optional<uint32_t> left_recursive_rule(uint32_t start, const std::vector<Rule>& rules,
                                            const std::function<bool(const Symbol&)>& nullable) {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  struct Visit {
    uint32_t rule;
    std::vector<uint32_t> beginnings;
  };
  const std::vector<bool> reached = reachable_from(start, rules);
  std::vector<Mark> marks(rules.size(), Mark::kNew);
  std::vector<Visit> path;  // a depth-first search without recursion, since rules come from users
  const auto enter = [&](uint32_t rule) {
    marks[rule] = Mark::kOpen;
    path.push_back({rule, beginnings(rules[rule], rules, nullable)});
  };
  for (uint32_t root = 0; root < rules.size(); ++root) {
    if (!reached[root] || marks[root] != Mark::kNew) continue;
    enter(root);
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.beginnings.empty()) {
        marks[visit.rule] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const uint32_t next = visit.beginnings.back();
      visit.beginnings.pop_back();
      if (marks[next] == Mark::kOpen) return next;
      if (marks[next] == Mark::kNew) enter(next);
    }
  }
  return std::nullopt;
}

}  // namespace lfm2::grammar
