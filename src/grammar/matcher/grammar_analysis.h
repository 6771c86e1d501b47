// Questions about all rules of a grammar at once, answered in a time that is linear in its size.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "grammar/matcher/grammar.h"

namespace lfm2::grammar {

// The rules for which a property holds that each of these has: a sequence all of whose symbols have it; a rule with an
// alternative that has it; a repeat whose least texts consist of what has it. "Has a text" and "has the empty text"
// are such properties. `holds` answers for the symbols that are no rules. The least solution, so rules that only refer
// to each other do not have it (Dowling, Gallier 1984).
std::vector<bool> rules_with(const std::vector<Grammar::Rule>& rules, const std::function<bool(const Symbol&)>& holds);
bool sequence_has(const Sequence& sequence, const std::vector<bool>& rules,
                  const std::function<bool(const Symbol&)>& holds);

// The rules that `start` refers to, directly or not, and itself.
std::vector<bool> reachable_from(uint32_t start, const std::vector<Grammar::Rule>& rules);

// A rule that can begin with itself, before any byte, if there is one among those that `start` refers to. Needs
// Rule::nullable.
std::optional<uint32_t> left_recursive_rule(uint32_t start, const std::vector<Grammar::Rule>& rules,
                                            const std::function<bool(const Symbol&)>& nullable);

}  // namespace lfm2::grammar
