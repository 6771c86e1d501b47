// Derivatives (Brzozowski 1964, theorem 3.1), tabulated by class of bytes (Owens, Reppy, Turon 2009, section 4.2).
#include <algorithm>

#include "grammar/expression/expression.h"

namespace lfm2::grammar {

// Facts: a fact (part, whole) says that each text of `part` is in `whole`, which is what remains of a universe U = p*
// within or between two pieces: a derivative of U, so of the form r·U. Facts hold for derivatives: what remains of
// `part` after a byte is within what remains of `whole`. They also hold for r·U followed by texts of U.

uint32_t Expressions::within(size_t universe, uint32_t node) const {
  const std::vector<uint32_t>& facts = universes_[universe].within;
  return node < facts.size() ? facts[node] : 0;
}

// The first fact of a node stays: another one is as true.
void Expressions::set_within(size_t universe, uint32_t node, uint32_t whole) {
  std::vector<uint32_t>& facts = universes_[universe].within;
  if (whole == 0) return;
  if (node >= facts.size()) facts.resize(std::max<size_t>(nodes_.size(), node + 1), 0);
  if (facts[node] == 0 || whole == node) facts[node] = whole;
}

uint32_t Expressions::add_universe(Expr star, uint32_t key) {
  for (uint32_t u = 0; u < universes_.size(); ++u)
    if (universes_[u].star == star) return u;
  const auto universe = static_cast<uint32_t>(universes_.size());
  universes_.push_back({key, star, {}});
  set_within(universe, id(empty()), id(star));
  set_within(universe, id(star), id(star));
  if (is(star, Kind::kRepeat)) set_within(universe, node(star).a, id(star));
  return universe;
}

std::optional<Expressions::Universe> Expressions::find_universe(uint32_t key) const {
  for (uint32_t u = 0; u < universes_.size(); ++u)
    if (universes_[u].key == key) return Universe{u, universes_[u].star};
  return std::nullopt;
}

void Expressions::note_within(uint32_t universe, Expr part) {
  set_within(universe, id(part), within(universe, id(empty())));
}

PartitionId Expressions::partition(Expr expr) {
  PartitionId found = transitions_[id(expr)].partition;
  if (found == kUnknown) transitions_[id(expr)].partition = found = new_partition(Node(node(expr)));
  return found;
}

PartitionId Expressions::new_partition(const Node& node) {
  charge(1);
  switch (node.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      return ByteClasses::kWhole;
    case Kind::kBytes:
      return classes_.of(sets_[node.a]);
    case Kind::kComplement:
    case Kind::kRepeat:
      return partition(Expr{node.a});
    case Kind::kAutomaton:
      return automata_[node.a].partition;
    case Kind::kConcat: {
      PartitionId met = partition(Expr{node.a});
      uint32_t rest = node.b;
      for (bool open = nullable(Expr{node.a}); open;) {
        const Node& next = nodes_[rest];
        if (next.kind != Kind::kConcat) return classes_.meet(met, partition(Expr{rest}));
        charge(1);
        open = nullable(Expr{next.a});
        rest = next.b;
        met = classes_.meet(met, partition(Expr{next.a}));
      }
      return met;
    }
    case Kind::kEither:
    case Kind::kBoth:
      break;
  }
  std::vector<PartitionId> parts;
  for (const uint32_t part : parts_of(node)) parts.push_back(partition(Expr{part}));
  std::ranges::sort(parts);
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  charge(parts.size());
  PartitionId met = parts.front();
  for (const PartitionId part : parts) met = classes_.meet(met, part);
  return met;
}

const ByteSet& Expressions::first(Expr expr) {
  uint32_t number = transitions_[id(expr)].first;
  if (number == kUnknown) transitions_[id(expr)].first = number = new_first(Node(node(expr)));
  return sets_[number];
}

uint32_t Expressions::new_first(Node node) {
  charge(1);
  ByteSet set;
  switch (node.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      break;
    case Kind::kBytes:
      return node.a;
    case Kind::kComplement:
      set.set();
      break;
    case Kind::kRepeat:
      set = first(Expr{node.a});
      break;
    case Kind::kAutomaton: {
      const Automaton& machine = automata_[node.a];
      for (size_t byte = 0; byte < 256; ++byte) {
        const size_t column = classes_.classes(machine.partition)[byte];
        set[byte] = machine.next[size_t{node.b} * machine.classes + column] != Automaton::kDead;
      }
      break;
    }
    case Kind::kConcat:
      for (;; node = nodes_[node.b]) {
        set |= first(Expr{node.a});
        if (!nullable(Expr{node.a})) break;
        if (nodes_[node.b].kind == Kind::kConcat) continue;
        set |= first(Expr{node.b});
        break;
      }
      break;
    case Kind::kEither:
      for (const uint32_t part : parts_of(node)) set |= first(Expr{part});
      break;
    case Kind::kBoth:
      set.set();
      for (const uint32_t part : parts_of(node)) set &= first(Expr{part});
      break;
  }
  return set_number(set);
}

std::span<const uint8_t> Expressions::representatives(Expr expr) { return classes_.representatives(partition(expr)); }

Expr Expressions::derivative(Expr expr, std::string_view bytes) {
  for (const char byte : bytes) expr = derivative(expr, static_cast<uint8_t>(byte));
  return expr;
}

Expr Expressions::new_derivative(Expr expr, uint8_t byte) {
  const PartitionId classes = partition(expr);
  if (transitions_[id(expr)].row == kNoRow) {
    transitions_[id(expr)].row = static_cast<uint32_t>(rows_.size());
    rows_.resize(rows_.size() + classes_.representatives(classes).size(), kUnknown);
  }
  Expr result = compute_derivative(Node(node(expr)), byte);
  const size_t place = transitions_[id(expr)].row + classes_.classes(classes)[byte];
  rows_[place] = id(result);  // before the facts, as a piece is within what repeats it
  for (size_t u = 0; u < universes_.size(); ++u) {
    const uint32_t whole = within(u, id(expr));
    if (whole == 0 || known_impossible(result)) continue;
    const Expr rest = whole == id(expr) ? result : derivative(Expr{whole}, byte);
    if (known_impossible(rest))
      result = nothing();
    else
      set_within(u, id(result), id(rest));
  }
  rows_[place] = id(result);
  return result;
}

Expr Expressions::compute_derivative(const Node& node, uint8_t byte) {
  charge(1);
  switch (node.kind) {
    case Kind::kNothing:
    case Kind::kEmpty:
      return nothing();
    case Kind::kBytes:
      return sets_[node.a][byte] ? empty() : nothing();
    case Kind::kConcat:
      return derivative_of_concat(node, byte);
    case Kind::kComplement:
      return complement(derivative(Expr{node.a}, byte));
    case Kind::kRepeat: {
      // A nullable e has min 0: then e{0,n} is e·…·e, and the first e to hold a byte may be taken for the first one.
      const Expr first = derivative(Expr{node.a}, byte);
      if (known_impossible(first)) return nothing();
      const uint32_t min = node.b == 0 ? 0 : node.b - 1, max = node.c == kNoMax ? kNoMax : node.c - 1;
      return concat(first, repeat(Expr{node.a}, min, max));
    }
    case Kind::kAutomaton: {
      const Automaton& machine = automata_[node.a];
      const uint8_t column = classes_.classes(machine.partition)[byte];
      return automaton_state(node.a, machine.next[size_t{node.b} * machine.classes + column]);
    }
    case Kind::kEither:
    case Kind::kBoth:
      break;
  }
  std::vector<Expr> parts;
  for (const uint32_t part : parts_of(node)) {
    parts.push_back(derivative(Expr{part}, byte));
    if (node.kind == Kind::kBoth && known_impossible(parts.back())) return nothing();
  }
  return node.kind == Kind::kBoth ? both(parts) : either(parts);
}

// Of a1 a2 … an: the derivative of a1, and of each part that only nullable ones precede, with what follows.
Expr Expressions::derivative_of_concat(Node node, uint8_t byte) {
  std::vector<Expr> ways;
  for (;;) {
    charge(1);
    const Expr first{node.a}, rest{node.b};
    const Expr way = derivative(first, byte);
    if (!known_impossible(way)) ways.push_back(concat(way, rest));
    if (!nullable(first)) break;
    if (!is(rest, Kind::kConcat)) {
      ways.push_back(derivative(rest, byte));
      break;
    }
    node = this->node(rest);
  }
  return ways.size() == 1 ? ways.front() : either(ways);
}

}  // namespace lfm2::grammar
