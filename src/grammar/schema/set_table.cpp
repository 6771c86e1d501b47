#include "grammar/schema/set_table.h"

#include <algorithm>

#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxSets = 50'000;

uint32_t code(const Literal& literal) { return static_cast<uint32_t>(literal.schema) * 2 + !literal.positive; }

}  // namespace

SetTable::SetTable(SchemaReader& reader) : reader_(reader) {
  sets_.push_back({});
  numbers_.emplace(std::vector<uint32_t>{}, whole());
  sets_.push_back({{reader.never(), true}});
  numbers_.emplace(std::vector<uint32_t>{code(sets_.back().front())}, nothing());
}

SetId SetTable::of(SchemaId schema, bool positive) {
  for (size_t steps = 0;; ++steps) {
    const Schema& read = reader_.at(schema);
    if (read.assertions.empty()) return positive ? whole() : nothing();
    const Assertion& only = read.assertions.front();
    if (only.kind == Assertion::Kind::kNever) return positive ? nothing() : whole();
    const bool turns = only.kind == Assertion::Kind::kNot;
    if (read.assertions.size() > 1 || only.schemas.size() != 1 || !(turns || only.kind == Assertion::Kind::kAllOf))
      break;
    if (steps > reader_.size())
      throw Refusal(read.node->pointer(), only.place->key, excerpt(*only.place), "no circle of references");
    schema = only.schemas.front();
    positive = positive != turns;
  }
  const Literal literal{schema, positive};
  const auto [at, added] = numbers_.try_emplace({code(literal)}, static_cast<SetId>(sets_.size()));
  if (added) sets_.push_back({literal});
  return at->second;
}

std::optional<SetId> SetTable::complement(SetId set) {
  const std::vector<Literal>& parts = literals(set);
  if (parts.empty()) return nothing();
  if (parts.size() > 1) return std::nullopt;
  return of(parts.front().schema, !parts.front().positive);
}

SetId SetTable::both(SetId first, SetId second) {
  if (first == second || second == whole() || first == nothing()) return first;
  if (first == whole() || second == nothing()) return second;
  const uint64_t pair = uint64_t{static_cast<uint32_t>(first)} << 32 | static_cast<uint32_t>(second);
  if (const auto known = intersections_.find(pair); known != intersections_.end()) return known->second;
  std::vector<Literal> literals = sets_[static_cast<size_t>(first)];
  std::vector<uint32_t> sorted;
  for (const Literal& literal : literals) sorted.push_back(code(literal));
  bool contradicts = false;
  for (const Literal& literal : sets_[static_cast<size_t>(second)]) {
    contradicts = contradicts || std::find(sorted.begin(), sorted.end(), code(literal) ^ 1) != sorted.end();
    if (std::find(sorted.begin(), sorted.end(), code(literal)) != sorted.end()) continue;
    sorted.push_back(code(literal));
    literals.push_back(literal);
  }
  std::sort(sorted.begin(), sorted.end());
  SetId result = nothing();
  if (!contradicts) {
    const auto [at, added] = numbers_.try_emplace(sorted, static_cast<SetId>(sets_.size()));
    if (added) {
      if (sets_.size() >= kMaxSets) throw Refusal("", "", "more than 50,000 intersections of schemas", "fewer");
      sets_.push_back(std::move(literals));
    }
    result = at->second;
  }
  intersections_.emplace(pair, result);
  return result;
}

}  // namespace lfm2::grammar
