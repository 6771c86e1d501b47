// either() and both(): flattening, sorting and merging of their parts, so that equal sets of parts are one node.
#include <algorithm>

#include "grammar/expression/expression.h"

namespace lfm2::grammar {

void Expressions::add_either_term(Expr part, Terms& terms) {
  const Node node = this->node(part);
  if (node.possible == Possible::kNo) return;
  switch (node.kind) {
    case Kind::kEmpty:
      terms.has_empty = true;
      return;
    case Kind::kBytes:
      terms.set |= sets_[node.a];
      return;
    case Kind::kEither:
      for (const uint32_t inner : parts_of(node)) add_either_term(Expr{inner}, terms);
      return;
    case Kind::kRepeat:
      if (node.b == 0 && node.c == 1) {
        terms.has_empty = true;
        add_either_term(Expr{node.a}, terms);
        return;
      }
      break;
    default:
      break;
  }
  terms.parts.push_back(id(part));
}

// Whether the parts, which are sorted, have an expression and its complement, or an expression within a rest of a
// universe and the complement of that rest.
bool Expressions::are_disjoint(const std::vector<uint32_t>& parts) const {
  return std::ranges::any_of(parts, [&](uint32_t part) {
    if (nodes_[part].kind != Kind::kComplement) return false;
    const uint32_t inner = nodes_[part].a;
    if (std::ranges::binary_search(parts, inner)) return true;
    for (size_t u = 0; u < universes_.size(); ++u)
      if (within(u, inner) == inner &&
          std::ranges::any_of(parts, [&](uint32_t other) { return within(u, other) == inner; }))
        return true;
    return false;
  });
}

namespace {

void sort_unique(std::vector<uint32_t>& parts) {
  std::ranges::sort(parts);
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
}

struct Counted {
  uint32_t part, min, max;
  auto operator<=>(const Counted&) const = default;
};

// Joins e{a,b} and e{c,d} into e{a,d} where the counts leave no gap.
std::vector<Counted> joined(std::vector<Counted> ranges) {
  std::ranges::sort(ranges);
  std::vector<Counted> result;
  for (const Counted& range : ranges) {
    if (!result.empty() && result.back().part == range.part && range.min <= uint64_t{result.back().max} + 1)
      result.back().max = std::max(result.back().max, range.max);
    else
      result.push_back(range);
  }
  return result;
}

}  // namespace

// Adds `heads` · `tail` to `parts`: one-byte heads become one, counted ones are joined. `tail` itself, where it is a
// part, is e{0,0} · tail for every e; it becomes no part where it was joined.
void Expressions::merge_heads(std::span<const uint32_t> heads, uint32_t tail, bool& tail_is_part,
                              std::vector<uint32_t>& parts) {
  std::vector<Counted> ranges;
  for (const uint32_t head : heads)
    if (nodes_[head].kind == Kind::kRepeat) ranges.push_back({nodes_[head].a, nodes_[head].b, nodes_[head].c});
  const size_t counted = ranges.size();
  ByteSet set;
  std::vector<uint32_t> merged;
  for (const uint32_t head : heads) {
    if (nodes_[head].kind == Kind::kRepeat) continue;
    const bool is_repeated = std::any_of(ranges.begin(), ranges.begin() + static_cast<ptrdiff_t>(counted),
                                         [&](const Counted& range) { return range.part == head; });
    if (is_repeated)
      ranges.push_back({head, 1, 1});
    else if (nodes_[head].kind == Kind::kBytes)
      set |= sets_[nodes_[head].a];
    else
      merged.push_back(head);
  }
  bool tail_joined = false;
  for (Counted& range : ranges) {
    if (!tail_is_part || range.min > 1) continue;
    range.min = 0;
    tail_joined = true;
  }
  tail_is_part = tail_is_part && !tail_joined;
  for (const Counted& range : joined(std::move(ranges)))
    merged.push_back(id(repeat(Expr{range.part}, range.min, range.max)));
  if (set.any()) merged.push_back(id(bytes(set)));
  for (const uint32_t head : merged) parts.push_back(id(concat(Expr{head}, Expr{tail})));
}

// x·t | y·t becomes (x | y)·t where x | y is one set of bytes or one counted repetition.
void Expressions::merge_tails(Terms& terms) {
  struct Split {
    uint32_t tail, head;
    auto operator<=>(const Split&) const = default;
  };
  std::vector<Split> splits;
  for (const uint32_t part : terms.parts) {
    const Node& node = nodes_[part];
    splits.push_back(node.kind == Kind::kConcat ? Split{node.b, node.a} : Split{id(empty()), part});
  }
  std::ranges::sort(splits);
  std::vector<uint32_t> parts, heads, joined_tails;
  for (size_t begin = 0, end = 0; begin < splits.size(); begin = end) {
    const uint32_t tail = splits[begin].tail;
    heads.clear();
    for (; end < splits.size() && splits[end].tail == tail; ++end) heads.push_back(splits[end].head);
    const bool is_empty = tail == id(empty());
    const bool was_part = is_empty ? terms.has_empty : std::ranges::binary_search(terms.parts, tail);
    bool is_part = was_part;
    merge_heads(heads, tail, is_part, parts);
    if (was_part && !is_part) {
      if (is_empty) terms.has_empty = false;
      joined_tails.push_back(tail);
    }
  }
  std::erase_if(parts, [&](uint32_t part) { return std::ranges::find(joined_tails, part) != joined_tails.end(); });
  sort_unique(parts);
  terms.parts = std::move(parts);
}

// Drops what a universe's rest decides: in either() whatever is within it, in both() the rest itself.
void Expressions::absorb(Kind kind, std::vector<uint32_t>& parts) const {
  if (parts.size() < 2) return;
  for (size_t u = 0; u < universes_.size(); ++u) {
    const auto rests = [&] {
      std::vector<uint32_t> found;
      for (const uint32_t part : parts)
        if (within(u, part) == part) found.push_back(part);
      return found;
    }();
    for (const uint32_t rest : rests) {
      const auto inside = [&](uint32_t part) { return part != rest && within(u, part) == rest; };
      if (kind == Kind::kEither)
        std::erase_if(parts, inside);
      else if (std::ranges::any_of(parts, inside))
        std::erase(parts, rest);
    }
  }
}

Expr Expressions::intern_list(Kind kind, std::vector<uint32_t> parts) {
  sort_unique(parts);
  const bool is_both = kind == Kind::kBoth;
  Node fields{kind, is_both, Possible::kUnknown, 0, is_both ? 0 : kNoMax, is_both ? kNoMax : 0, 0, 0, 0};
  bool any_possible = false;
  for (const uint32_t part : parts) {
    const Node& inner = nodes_[part];
    fields.depth = std::max(fields.depth, inner.depth + 1);
    fields.nullable = is_both ? fields.nullable && inner.nullable : fields.nullable || inner.nullable;
    fields.min_length =
        is_both ? std::max(fields.min_length, inner.min_length) : std::min(fields.min_length, inner.min_length);
    fields.max_length =
        is_both ? std::min(fields.max_length, inner.max_length) : std::max(fields.max_length, inner.max_length);
    any_possible = any_possible || inner.possible == Possible::kYes;
  }
  if (fields.nullable || (!is_both && any_possible)) fields.possible = Possible::kYes;
  const Expr whole = intern(fields, parts);
  for (size_t u = 0; u < universes_.size(); ++u) {
    uint32_t common = within(u, parts.front());
    for (const uint32_t part : parts) {
      const uint32_t fact = within(u, part);
      if (is_both ? common == 0 : fact != common) common = is_both ? fact : 0;
    }
    set_within(u, id(whole), common);
  }
  return whole;
}

Expr Expressions::either(std::span<const Expr> given) {
  Terms terms;
  for (const Expr part : given) add_either_term(part, terms);
  charge(1 + terms.parts.size());
  if (terms.set.any()) terms.parts.push_back(id(bytes(terms.set)));
  sort_unique(terms.parts);
  if (terms.parts.size() > 1 || terms.has_empty) merge_tails(terms);
  std::vector<uint32_t>& parts = terms.parts;
  const bool has_opposites = std::ranges::any_of(parts, [&](uint32_t part) {
    return nodes_[part].kind == Kind::kComplement && std::ranges::binary_search(parts, nodes_[part].a);
  });
  if (has_opposites || std::ranges::binary_search(parts, id(anything()))) return anything();
  absorb(Kind::kEither, parts);
  if (terms.has_empty && std::ranges::none_of(parts, [&](uint32_t part) { return nodes_[part].nullable; })) {
    if (parts.empty()) return empty();
    if (parts.size() == 1) return repeat(Expr{parts.front()}, 0, 1);
    parts.push_back(id(empty()));
  }
  if (parts.empty()) return nothing();
  if (parts.size() == 1) return Expr{parts.front()};
  return intern_list(Kind::kEither, std::move(parts));
}

// Returns false where the whole has no text.
bool Expressions::add_both_term(Expr part, Terms& terms) {
  const Node node = this->node(part);
  if (node.possible == Possible::kNo) return false;
  if (part == anything()) return true;
  if (node.kind == Kind::kBoth) {
    for (const uint32_t inner : parts_of(node))
      if (!add_both_term(Expr{inner}, terms)) return false;
    return true;
  }
  if (node.kind == Kind::kEmpty) {
    terms.has_empty = true;
  } else if (node.kind == Kind::kBytes) {
    terms.set = terms.has_set ? terms.set & sets_[node.a] : sets_[node.a];
    terms.has_set = true;
  } else {
    terms.parts.push_back(id(part));
  }
  return !terms.has_set || (terms.set.any() && !terms.has_empty);
}

Expr Expressions::both(std::span<const Expr> given) {
  Terms terms;
  for (const Expr part : given)
    if (!add_both_term(part, terms)) return nothing();
  charge(1 + terms.parts.size());
  std::vector<uint32_t>& parts = terms.parts;
  if (terms.has_empty) {
    const bool all = std::ranges::all_of(parts, [&](uint32_t part) { return nodes_[part].nullable; });
    return all ? empty() : nothing();
  }
  if (terms.has_set) parts.push_back(id(bytes(terms.set)));
  sort_unique(parts);
  if (are_disjoint(parts)) return nothing();
  uint32_t min = 0, max = kNoMax;
  for (const uint32_t part : parts) {
    min = std::max(min, nodes_[part].min_length);
    max = std::min(max, nodes_[part].max_length);
  }
  if (min > max) return nothing();
  absorb(Kind::kBoth, parts);
  if (parts.empty()) return anything();
  if (parts.size() == 1) return Expr{parts.front()};
  return intern_list(Kind::kBoth, std::move(parts));
}

}  // namespace lfm2::grammar
