#include "grammar/schema/list_rules.h"

#include <algorithm>

#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxItemPlaces = 20'000;
constexpr size_t kMaxContains = 8;

}  // namespace

ListRules::ListRules(ValueRules& values, const ListShape& shape) : values_(values), shape_(shape) {
  last_index_ = static_cast<uint32_t>(shape.prefix.size());
  for (const ListShape::Contains& contains : shape.contains) last_index_ = std::max(last_index_, contains.from);
  if (shape.contains.empty()) return;
  const uint32_t counted = shape.max == kNoMax ? shape.min : shape.max;
  last_index_ = std::max(last_index_, counted);
}

Sequence ListRules::write() {
  if (shape_.unique && shape_.max > 1)
    throw Refusal(shape_.unique->parent->pointer(), "uniqueItems", "true", "false, or at most one item");
  if (shape_.contains.size() > kMaxContains) throw Refusal("", "", "more than 8 claims about contained items", "fewer");
  return shape_.contains.empty() ? chain() : states();
}

// [ inner ], or the empty list.
Sequence ListRules::whole(Sequence inner) {
  const Notation& n = values_.notation();
  Sequence full = {Symbol::text(n.open_list())};
  append(full, inner, n.expressions());
  if (shape_.min > 0) return full;
  const RuleId rule = values_.grammar().add_rule();
  values_.grammar().set_alternatives(rule, {{Symbol::text(n.empty_list())}, std::move(full)});
  return {Symbol::rule(rule)};
}

// From the last item back, so that each rule knows the one that follows.
Sequence ListRules::chain() {
  const Notation& n = values_.notation();
  Expressions& expressions = n.expressions();
  Grammar& grammar = values_.grammar();
  const uint32_t listed = static_cast<uint32_t>(std::min<size_t>(shape_.prefix.size(), shape_.max));
  if (shape_.max == 0) return {Symbol::text(n.empty_list())};
  Sequence from;  // from the item at an index to the closing bracket
  if (shape_.max > listed && shape_.rest != values_.forms().sets().nothing()) {
    const RuleId others = grammar.add_rule();
    const uint32_t most = shape_.max == kNoMax ? kNoMax : shape_.max - listed;
    grammar.set_repeat(others, values_.value(shape_.rest), {Symbol::text(n.comma())},
                       std::max(shape_.min, listed + 1) - listed, most);
    from = {Symbol::rule(others), Symbol::text(n.close_list())};
  }
  for (uint32_t index = listed; index-- > 0;) {
    Sequence item = values_.value(shape_.prefix[index]);
    std::vector<Sequence> next;
    if (index + 1 >= shape_.min) next.push_back({Symbol::text(n.close_list())});
    if (!from.empty()) {
      next.push_back({Symbol::text(n.comma())});
      append(next.back(), from, expressions);
    }
    const RuleId rule = grammar.add_rule();
    grammar.set_alternatives(rule, std::move(next));
    from = std::move(item);
    from.push_back(Symbol::rule(rule));
  }
  if (from.empty()) return {Symbol::text(shape_.min == 0 ? n.empty_list() : expressions.nothing())};
  return whole(std::move(from));
}

Sequence ListRules::states() {
  const Place start(1 + shape_.contains.size(), 0);
  const Rules first = rules(start);
  while (!open_.empty()) {
    const Place place = std::move(open_.back());
    open_.pop_back();
    write(place, rules_.at(place));
  }
  if (may_end(start) || shape_.min > 0) return whole({Symbol::rule(first.item)});
  Sequence full = {Symbol::text(values_.notation().open_list()), Symbol::rule(first.item)};
  return full;
}

ListRules::Rules ListRules::rules(const Place& place) {
  if (const auto known = rules_.find(place); known != rules_.end()) return known->second;
  if (rules_.size() >= kMaxItemPlaces) throw Refusal("", "", "items with more than 20,000 states", "smaller counts");
  const Rules made{values_.grammar().add_rule(), values_.grammar().add_rule()};
  rules_.emplace(place, made);
  open_.push_back(place);
  return made;
}

bool ListRules::may_end(const Place& place) const {
  if (place[0] < shape_.min) return false;
  for (size_t i = 0; i < shape_.contains.size(); ++i)
    if (place[i + 1] < shape_.contains[i].min) return false;
  return true;
}

void ListRules::write(const Place& place, const Rules& rules) {
  const Notation& n = values_.notation();
  std::vector<Sequence> items, next;
  if (shape_.max == kNoMax || place[0] < shape_.max) {
    add_item(place, items);
    next.push_back({Symbol::text(n.comma()), Symbol::rule(rules.item)});
  }
  if (place[0] > 0 && may_end(place)) next.push_back({Symbol::text(n.close_list())});
  values_.grammar().set_alternatives(rules.item, std::move(items));
  values_.grammar().set_alternatives(rules.next, std::move(next));
}

// An item counts for each choice of `contains`. Where there is an upper bound, one that does not count must be outside.
void ListRules::add_item(const Place& place, std::vector<Sequence>& to) {
  SetTable& sets = values_.forms().sets();
  const uint32_t all = (1u << shape_.contains.size()) - 1;
  for (uint32_t hits = 0; hits <= all; ++hits) {
    SetId item = shape_.item(place[0]);
    Place after = place;
    after[0] = std::min(place[0] + 1, std::max(last_index_, 1u));
    bool allowed = true;
    for (size_t i = 0; i < shape_.contains.size(); ++i) {
      const ListShape::Contains& contains = shape_.contains[i];
      const bool bounded = contains.max != kNoMax, hit = hits >> i & 1;
      const uint32_t count = place[i + 1];
      if (hit) {
        allowed = allowed && place[0] >= contains.from && count < (bounded ? contains.max : contains.min);
        item = sets.both(item, contains.set);
        after[i + 1] = count + 1;
      } else if (bounded && place[0] >= contains.from) {
        const std::optional<SetId> outside = sets.complement(contains.set);
        if (!outside) throw Refusal("", "", "contains with an upper bound on an intersection", "a single schema");
        item = sets.both(item, *outside);
      }
    }
    if (!allowed || item == sets.nothing()) continue;
    Sequence sequence = values_.value(item);
    sequence.push_back(Symbol::rule(rules(after).next));
    to.push_back(std::move(sequence));
  }
}

}  // namespace lfm2::grammar
