// Nodes and their constructors, but for either() and both().
#include "grammar/expression/expression.h"

#include <algorithm>
#include <utility>

namespace lfm2::grammar {

namespace {

// Deeper nodes would need too much stack: derivatives recurse into depth, not along concats.
constexpr uint32_t kMaxNodeDepth = 2'000;
constexpr int kMaxTextsDepth = 64;  // of beginnings that texts have in common

uint32_t saturated_length(uint64_t length) { return static_cast<uint32_t>(std::min<uint64_t>(length, UINT32_MAX)); }

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

}  // namespace

Expressions::Expressions(Limits limits) : limits_(limits), steps_left_(limits.expression_steps) {
  table_.assign(256, kUnknown);
  intern({Kind::kNothing, false, Possible::kNo, 0, 0, 0, 0, 0, 0});
  intern({Kind::kEmpty, true, Possible::kYes, 0, 0, 0, 0, 0, 0});
  intern({Kind::kComplement, true, Possible::kYes, 1, 0, kNoMax, 0, 0, 0});
}

std::vector<uint32_t> Expressions::parts_of(const Node& node) const {
  const auto first = lists_.begin() + node.a;
  return {first, first + node.b};
}

void Expressions::charge(uint64_t steps) {
  if (steps > steps_left_)
    throw Refusal("", "", "expressions whose evaluation needs too many steps", "simpler patterns and bounds");
  steps_left_ -= steps;
}

size_t Expressions::memory() const {
  size_t bytes = nodes_.size() * (sizeof(Node) + sizeof(Transitions)) + table_.size() * sizeof(uint32_t);
  bytes += (lists_.size() + rows_.size()) * sizeof(uint32_t) + sets_.size() * (2 * sizeof(ByteSet) + 32);
  for (const Facts& facts : universes_) bytes += facts.within.size() * sizeof(uint32_t);
  for (const Automaton& machine : automata_) bytes += machine.next.size() * sizeof(uint32_t);
  return bytes + classes_.memory();
}

uint64_t Expressions::hash_of(const Node& fields, std::span<const uint32_t> parts) const {
  uint64_t hash = mixed(0, static_cast<uint64_t>(fields.kind));
  if (fields.kind == Kind::kEither || fields.kind == Kind::kBoth) {
    for (const uint32_t part : parts) hash = mixed(hash, part);
    return hash;
  }
  return mixed(mixed(mixed(hash, fields.a), fields.b), fields.c);
}

void Expressions::fill_table(size_t slots) {
  table_.assign(slots, kUnknown);
  for (uint32_t number = 0; number < nodes_.size(); ++number) {
    const Node& node = nodes_[number];
    const bool is_list = node.kind == Kind::kEither || node.kind == Kind::kBoth;
    const std::span<const uint32_t> parts(lists_.data() + (is_list ? node.a : 0), is_list ? node.b : 0);
    size_t slot = hash_of(node, parts) & (table_.size() - 1);
    while (table_[slot] != kUnknown) slot = (slot + 1) & (table_.size() - 1);
    table_[slot] = number;
  }
}

// A node refers to older ones alone. Its derivatives and the facts about it may be younger.
void Expressions::forget(const Mark& after) {
  nodes_.resize(after.nodes);
  lists_.resize(after.lists);
  transitions_.resize(after.nodes);
  for (Transitions& from : transitions_) from.row = kNoRow;
  rows_ = {};
  for (Facts& facts : universes_) {
    if (facts.within.size() > after.nodes) facts.within.resize(after.nodes);
    for (uint32_t& whole : facts.within)
      if (whole >= after.nodes) whole = 0;
  }
  fill_table(table_.size());
}

// `parts` is of kEither and kBoth alone.
Expr Expressions::intern(Node fields, std::span<const uint32_t> parts) {
  const bool is_list = fields.kind == Kind::kEither || fields.kind == Kind::kBoth;
  size_t slot = hash_of(fields, parts) & (table_.size() - 1);
  for (; table_[slot] != kUnknown; slot = (slot + 1) & (table_.size() - 1)) {
    const Node& known = nodes_[table_[slot]];
    if (known.kind != fields.kind) continue;
    if (is_list ? std::ranges::equal(std::span(lists_.data() + known.a, known.b), parts)
                : known.a == fields.a && known.b == fields.b && known.c == fields.c)
      return Expr{table_[slot]};
  }
  if (fields.depth > kMaxNodeDepth)
    throw Refusal("", "", "patterns and bounds that lie too deep in each other",
                  fmt::format("at most {} levels", kMaxNodeDepth));
  if (is_full())
    throw Refusal("", "", "expressions that need too much memory",
                  fmt::format("at most {} parts and {} MiB", limits_.expression_nodes, limits_.expression_bytes >> 20));
  if (is_list) {
    fields.a = static_cast<uint32_t>(lists_.size());
    fields.b = static_cast<uint32_t>(parts.size());
    lists_.insert(lists_.end(), parts.begin(), parts.end());
  }
  const auto number = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(fields);
  transitions_.push_back({kNoRow, kUnknown, kUnknown});
  table_[slot] = number;
  if (nodes_.size() * 2 > table_.size()) fill_table(table_.size() * 2);
  return Expr{number};
}

uint32_t Expressions::set_number(const ByteSet& set) {
  const auto [place, is_new] = set_numbers_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return place->second;
}

Expr Expressions::bytes(const ByteSet& set) {
  if (set.none()) return nothing();
  return intern({Kind::kBytes, false, Possible::kYes, 0, 1, 1, set_number(set), 0, 0});
}

Expr Expressions::text(std::string_view bytes) {
  Expr whole = empty();
  for (size_t i = bytes.size(); i-- > 0;) {
    ByteSet set;
    set.set(static_cast<uint8_t>(bytes[i]));
    whole = concat(this->bytes(set), whole);
  }
  return whole;
}

Expr Expressions::texts(std::vector<std::string> all) {
  if (all.empty()) return nothing();
  std::ranges::sort(all);
  return texts_from(all, 0, 0);
}

// The texts from byte `at` on, with common beginnings written once, so that a step through many texts looks at those
// alone that still fit.
Expr Expressions::texts_from(std::span<const std::string> sorted, size_t at, int depth) {
  const std::string_view first = sorted.front(), last = sorted.back();
  if (sorted.size() == 1) return text(first.substr(at));
  const auto split = static_cast<size_t>(std::ranges::mismatch(first, last).in1 - first.begin());
  std::vector<Expr> parts;
  for (size_t begin = 0; begin < sorted.size();) {
    size_t end = begin + 1;
    const bool ends = sorted[begin].size() == split;
    while (depth < kMaxTextsDepth && !ends && end < sorted.size() && sorted[end][split] == sorted[begin][split]) ++end;
    parts.push_back(texts_from(sorted.subspan(begin, end - begin), split, depth + 1));
    begin = end;
  }
  return concat(text(first.substr(at, split - at)), either(parts));
}

// Two repetitions of the same expression beside each other are one: e{a,b} e{c,d} = e{a+c,b+d}, e e{c,d} = e{c+1,d+1}.
std::optional<Expr> Expressions::joined_repeats(Expr first, Expr second) {
  struct Counted {
    uint32_t part, min, max;
  };
  const auto counted = [&](Expr expr) {
    const Node& fields = node(expr);
    return fields.kind == Kind::kRepeat ? Counted{fields.a, fields.b, fields.c} : Counted{id(expr), 1, 1};
  };
  if (!is(first, Kind::kRepeat) && !is(second, Kind::kRepeat)) return std::nullopt;
  Counted a = counted(first), b = counted(second);
  // A repetition may itself be what the other one repeats.
  if (a.part == id(second)) b = {id(second), 1, 1};
  if (b.part == id(first)) a = {id(first), 1, 1};
  if (a.part != b.part) return std::nullopt;
  const uint64_t min = uint64_t{a.min} + b.min, max = uint64_t{a.max} + b.max;
  const bool unbounded = a.max == kNoMax || b.max == kNoMax;
  if (min >= kNoMax || (!unbounded && max >= kNoMax)) return std::nullopt;
  return repeat(Expr{a.part}, static_cast<uint32_t>(min), unbounded ? kNoMax : static_cast<uint32_t>(max));
}

// `first` is no concat.
Expr Expressions::concat_one(Expr first, Expr second) {
  if (first == empty()) return second;
  if (second == empty()) return first;
  const bool second_is_concat = is(second, Kind::kConcat);
  const Expr head = second_is_concat ? Expr{node(second).a} : second;
  const Expr tail = second_is_concat ? Expr{node(second).b} : empty();
  if (head == anything() && nullable(first)) return second;
  if (first == anything() && nullable(head)) return concat_one(first, tail);
  if (const std::optional<Expr> joined = joined_repeats(first, head)) return concat_one(*joined, tail);
  const Node &a = node(first), &b = node(second);
  const bool possible = a.possible == Possible::kYes && b.possible == Possible::kYes;
  return intern({Kind::kConcat, a.nullable && b.nullable, possible ? Possible::kYes : Possible::kUnknown,
                 std::max(a.depth + 1, b.depth), saturated_length(uint64_t{a.min_length} + b.min_length),
                 saturated_length(uint64_t{a.max_length} + b.max_length), id(first), id(second), 0});
}

Expr Expressions::concat(Expr first, Expr second) {
  if (known_impossible(first) || known_impossible(second)) return nothing();
  std::vector<Expr> parts;
  Expr rest = first;
  for (; is(rest, Kind::kConcat); rest = Expr{node(rest).b}) parts.push_back(Expr{node(rest).a});
  charge(1 + parts.size());
  Expr whole = concat_one(rest, second);
  for (size_t i = parts.size(); i-- > 0;) whole = concat_one(parts[i], whole);
  for (size_t u = 0; u < universes_.size(); ++u) {
    // Texts of pieces after a rest of pieces are a rest of pieces.
    const uint32_t rest_of = within(u, id(first)), pieces = within(u, id(second));
    if (rest_of != 0 && pieces != 0 && pieces == within(u, id(empty()))) set_within(u, id(whole), rest_of);
  }
  return whole;
}

Expr Expressions::concat(std::span<const Expr> parts) {
  Expr whole = empty();
  for (size_t i = parts.size(); i-- > 0;) whole = concat(parts[i], whole);
  return whole;
}

Expr Expressions::complement(Expr part) {
  if (known_impossible(part)) return anything();
  if (part == anything()) return nothing();
  const Node& inner = node(part);
  if (inner.kind == Kind::kComplement) return Expr{inner.a};
  const bool nullable = !inner.nullable;
  return intern({Kind::kComplement, nullable, nullable ? Possible::kYes : Possible::kUnknown, inner.depth + 1,
                 nullable ? 0u : 1u, kNoMax, id(part), 0, 0});
}

namespace {

// Whether the numbers k·x with min <= k <= max and inner_min <= x <= inner_max, summed in any way, have no gaps.
bool has_no_gaps(uint64_t inner_min, uint64_t inner_max, uint64_t min, uint64_t max) {
  if (min == max) return true;
  if (min == 0 && inner_min > 1) return false;
  const uint64_t from = std::max<uint64_t>(min, 1);
  return inner_max == kNoMax || (from + 1) * inner_min <= from * inner_max + 1;
}

}  // namespace

Expr Expressions::repeat(Expr part, uint32_t min, uint32_t max) {
  if (min > max) return nothing();
  if (max == 0 || part == empty()) return empty();
  if (known_impossible(part)) return min == 0 ? empty() : nothing();
  if (part == anything()) return part;
  const Node inner = node(part);
  if (inner.nullable) min = 0;  // each missing one may be the empty text
  if (max == 1 && (min == 1 || inner.nullable)) return part;
  if (inner.kind == Kind::kBytes && sets_[inner.a].all() && min == 0 && max == kNoMax) return anything();
  if (inner.kind == Kind::kRepeat && has_no_gaps(inner.b, inner.c, min, max)) {
    const uint64_t least = uint64_t{inner.b} * min, most = uint64_t{inner.c} * max;
    const bool unbounded = inner.c == kNoMax || max == kNoMax;
    if (least < kNoMax && (unbounded || most < kNoMax))
      return repeat(Expr{inner.a}, static_cast<uint32_t>(least), unbounded ? kNoMax : static_cast<uint32_t>(most));
  }
  const Possible possible = min == 0 ? Possible::kYes : inner.possible;
  const Expr whole =
      intern({Kind::kRepeat, min == 0, possible, inner.depth + 1, saturated_length(uint64_t{inner.min_length} * min),
              saturated_length(uint64_t{inner.max_length} * max), id(part), min, max});
  for (size_t u = 0; u < universes_.size(); ++u)
    if (within(u, id(part)) == within(u, id(empty()))) set_within(u, id(whole), within(u, id(empty())));
  return whole;
}

Expr Expressions::automaton(Automaton machine) {
  for (uint32_t number = 0; number < automata_.size(); ++number) {
    const Automaton& known = automata_[number];
    if (known.partition == machine.partition && known.next == machine.next && known.accepts == machine.accepts)
      return automaton_state(number, 0);
  }
  const auto states = static_cast<uint32_t>(machine.accepts.size());
  // Distances to an accepting state, backwards by rounds: few, as all states of a remainder are near.
  std::vector<uint32_t> distance(states, Automaton::kDead);
  for (uint32_t state = 0; state < states; ++state)
    if (machine.accepts[state]) distance[state] = 0;
  for (bool changed = true; changed;) {
    changed = false;
    charge(machine.next.size() / 16 + 1);
    for (uint32_t state = 0; state < states; ++state)
      for (uint32_t i = 0; i < machine.classes; ++i) {
        const uint32_t next = machine.next[size_t{state} * machine.classes + i];
        if (next == Automaton::kDead || distance[next] == Automaton::kDead) continue;
        if (distance[next] + 1 < distance[state]) distance[state] = distance[next] + 1, changed = true;
      }
  }
  if (states == 0 || distance[0] == Automaton::kDead) return nothing();
  machine.min_lengths = std::move(distance);
  automata_.push_back(std::move(machine));
  return automaton_state(static_cast<uint32_t>(automata_.size() - 1), 0);
}

Expr Expressions::automaton_state(uint32_t number, uint32_t state) {
  const Automaton& machine = automata_[number];
  if (state == Automaton::kDead || machine.min_lengths[state] == Automaton::kDead) return nothing();
  return intern({Kind::kAutomaton, machine.accepts[state], Possible::kYes, 0, machine.min_lengths[state], kNoMax,
                 number, state, 0});
}

}  // namespace lfm2::grammar
