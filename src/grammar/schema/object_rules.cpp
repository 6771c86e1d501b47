#include "grammar/schema/object_rules.h"

#include <algorithm>

#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxPropertyPlaces = 20'000;
constexpr size_t kMaxSome = 6;

}  // namespace

ObjectRules::ObjectRules(ValueRules& values, const ObjectShape& shape, const ValueRules::ObjectSpelling& spelling,
                         bool closed)
    : values_(values), shape_(shape), spelling_(spelling) {
  std::vector<std::string> names;
  size_t optional = 0;  // since the last required one: any of them may come next
  for (const ObjectShape::Property& property : shape.properties) {
    names.push_back(property.name);
    optional = property.required ? 0 : optional + 1;
    if (property.required) last_required_ = static_cast<uint32_t>(names.size());
    if (optional >= values.grammar().limits().max_places)
      throw Refusal("", "", fmt::format("{} optional properties in a row", optional), "fewer");
  }
  if (shape.some.size() > kMaxSome) throw Refusal("", "", "more than 6 claims that some property holds", "fewer");
  if (closed) return;
  const TextForm others = TextForm::of(std::move(names)).complement();
  for (const ObjectShape::Keys& keys : shape.rest)
    rest_.push_back(
        {intersection(others, keys.keys ? TextForm::of(*keys.keys) : TextForm::all(), values.notation().expressions())
             .set(),
         keys.value});
  if (!rest_.empty()) expect_repeatable();
}

// A key that is not declared may be written twice, and the later value counts. So it can count as one property alone,
// and a value that is wanted of some property could be replaced.
void ObjectRules::expect_repeatable() const {
  const auto required = std::count_if(shape_.properties.begin(), shape_.properties.end(),
                                      [](const ObjectShape::Property& property) { return property.required; });
  if (shape_.min > required + 1)
    throw Refusal("", "", fmt::format("minProperties {}", shape_.min),
                  fmt::format("at most {} with undeclared properties", required + 1));
  for (const ObjectShape::Keys& some : shape_.some)
    if (some.value != values_.forms().sets().whole())
      throw Refusal("", "", "a claim about the value of some undeclared property", "claims about all");
}

bool ObjectRules::may_end(const Place& place) const {
  return place.index >= last_required_ && place.hits == (1u << shape_.some.size()) - 1 && place.count >= shape_.min;
}

ObjectRules::Place ObjectRules::after(const Place& place, uint32_t next, uint32_t hits) const {
  const uint32_t most = shape_.max == kNoMax ? shape_.min : shape_.max;
  return {next, place.hits | hits, std::min(place.count + 1, most)};
}

Sequence ObjectRules::write() {
  const Place start{0, 0, 0};
  const Rules first = rules(start);
  std::vector<Sequence> alternatives = {{Symbol::text(spelling_.open), Symbol::rule(first.key)}};
  if (may_end(start)) alternatives.push_back({Symbol::text(spelling_.empty)});
  while (!open_.empty()) {
    const Place place = open_.back();
    open_.pop_back();
    write(place, rules_.at(place));
  }
  if (alternatives.size() == 1) return alternatives.front();
  const RuleId whole = values_.grammar().add_rule();
  values_.grammar().set_alternatives(whole, std::move(alternatives));
  return {Symbol::rule(whole)};
}

ObjectRules::Rules ObjectRules::rules(const Place& place) {
  if (const auto known = rules_.find(place); known != rules_.end()) return known->second;
  if (rules_.size() >= kMaxPropertyPlaces)
    throw Refusal("", "", "properties with more than 20,000 states", "fewer or no counts");
  const Rules made{values_.grammar().add_rule(), values_.grammar().add_rule()};
  rules_.emplace(place, made);
  open_.push_back(place);
  return made;
}

void ObjectRules::write(const Place& place, const Rules& rules) {
  std::vector<Sequence> keys, next;
  if (place.count < shape_.max || shape_.max == kNoMax) {
    if (place.index < shape_.properties.size()) {
      const ObjectShape::Property& property = shape_.properties[place.index];
      add_property(place, TextForm::of(std::vector{property.name}), property.value, place.index + 1, keys);
      if (!property.required)
        keys.push_back({Symbol::rule(this->rules({place.index + 1, place.hits, place.count}).key)});
    } else {
      for (const ObjectShape::Keys& part : rest_)
        add_property(place, TextForm::of(*part.keys), part.value, place.index, keys);
    }
    next.push_back({Symbol::text(spelling_.comma), Symbol::rule(rules.key)});
  }
  if (may_end(place)) next.push_back({Symbol::text(spelling_.close)});
  values_.grammar().set_alternatives(rules.key, std::move(keys));
  values_.grammar().set_alternatives(rules.next, std::move(next));
}

void ObjectRules::add_property(const Place& place, const TextForm& keys, SetId value, uint32_t next,
                               std::vector<Sequence>& to) {
  Expressions& expressions = values_.notation().expressions();
  SetTable& sets = values_.forms().sets();
  if (value == sets.nothing()) return;
  const uint32_t all = (1u << shape_.some.size()) - 1;
  for (uint32_t hits = 0; hits <= all; ++hits) {
    if (hits & place.hits) continue;
    TextForm named = keys;
    SetId met = value;
    for (size_t i = 0; i < shape_.some.size(); ++i)
      if (hits >> i & 1) {
        const ObjectShape::Keys& some = shape_.some[i];
        if (some.keys) named = intersection(named, TextForm::of(*some.keys), expressions);
        met = sets.both(met, some.value);
      }
    if (named.empty() || met == sets.nothing()) continue;
    if (hits && !named.listed() && !values_.forms().possible(named.set())) continue;
    Sequence sequence = {Symbol::text(spelling_.key(named))};
    append(sequence, values_.value(met), expressions);
    sequence.push_back(Symbol::rule(rules(after(place, next, hits)).next));
    to.push_back(std::move(sequence));
  }
}

}  // namespace lfm2::grammar
