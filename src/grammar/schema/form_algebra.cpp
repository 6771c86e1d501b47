#include "grammar/schema/form_algebra.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxShapes = 1'024, kMaxNumbers = 10'000;  // of one form
constexpr size_t kMaxMade = 100'000;
constexpr size_t kMaxSteps = 1'500'000;

// `what`: of branches, whose lists and objects cost more than their numbers do.
template <class Part>
void expect_few(const std::vector<Part>& parts, std::string_view what) {
  constexpr bool kNumbers = std::is_same_v<Part, NumberPart>;
  if (parts.size() > (kNumbers ? kMaxNumbers : kMaxShapes))
    throw Refusal("", "", fmt::format("more than {} {}", kNumbers ? "10,000" : "1,024", what), "fewer");
}

bool is_all(const NumberPart& part) {
  const NumberSet& set = part.set;
  return !set.integer && !set.min && !set.max && set.multiples.empty() && !part.fraction && part.not_multiples.empty();
}

bool possible_bounds(const NumberPart& part) {
  const NumberSet& set = part.set;
  if (set.integer && part.fraction) return false;
  if (!set.min || !set.max || *set.min < *set.max) return true;
  if (*set.min > *set.max || set.exclusive_min || set.exclusive_max) return false;
  const Decimal& only = *set.min;
  return contains(set, only) && !(part.fraction && only.is_integer()) &&
         std::none_of(part.not_multiples.begin(), part.not_multiples.end(),
                      [&](const Decimal& step) { return only.is_multiple_of(step); });
}

}  // namespace

ObjectShape FormAlgebra::any_object() const {
  ObjectShape shape;
  shape.rest.push_back({std::nullopt, sets_.whole()});
  return shape;
}

Form FormAlgebra::everything() const {
  Form form;
  form.null = form.no = form.yes = true;
  form.text = TextForm::all();
  form.numbers.emplace_back();
  form.lists.push_back(any_list());
  form.objects.push_back(any_object());
  return form;
}

Form FormAlgebra::with(TextForm part) const {
  Form form = everything();
  form.text = std::move(part);
  return form;
}

Form FormAlgebra::with(std::vector<NumberPart> part) const {
  Form form = everything();
  form.numbers = std::move(part);
  return form;
}

Form FormAlgebra::with(std::vector<ListShape> part) const {
  Form form = everything();
  form.lists = std::move(part);
  return form;
}

Form FormAlgebra::with(std::vector<ObjectShape> part) const {
  Form form = everything();
  form.objects = std::move(part);
  return form;
}

bool FormAlgebra::possible(const TextSet& set) {
  return expressions_.possible(lower(set, Spelling::kRaw, expressions_));
}

SetId FormAlgebra::both(SetId first, SetId second) {
  const SetId set = sets_.both(first, second);
  const bool is_new = set != first && set != second && set != sets_.nothing();
  return is_new && emptiness_.surely_empty(set) ? sets_.nothing() : set;
}

SetId FormAlgebra::rest_value(const ObjectShape& shape, const std::string& name) {
  for (const ObjectShape::Keys& part : shape.rest)
    if (!part.keys || holds(*part.keys, name, expressions_)) return part.value;
  return sets_.nothing();
}

template <class Part>
std::vector<Part> FormAlgebra::products(const std::vector<Part>& first, const std::vector<Part>& second) {
  std::vector<Part> result;
  for (const Part& one : first)
    for (const Part& other : second) {
      if (++made_ > kMaxMade) throw Refusal("", "", "more than 100,000 combinations of branches", "fewer");
      if (auto both = intersection(one, other)) result.push_back(std::move(*both));
      expect_few(result, "combinations of branches");
    }
  return result;
}

void FormAlgebra::charge(size_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSteps) throw Refusal("", "", "branches whose combinations need too many steps", "fewer");
}

Form FormAlgebra::intersection(const Form& first, const Form& second) {
  charge(1);
  Form form;
  form.null = first.null && second.null;
  form.no = first.no && second.no;
  form.yes = first.yes && second.yes;
  form.text = grammar::intersection(first.text, second.text, expressions_);
  form.numbers = products(first.numbers, second.numbers);
  form.lists = products(first.lists, second.lists);
  form.objects = products(first.objects, second.objects);
  return form;
}

void FormAlgebra::unite(Form& whole, Form&& part) {
  whole.null |= part.null;
  whole.no |= part.no;
  whole.yes |= part.yes;
  whole.text = grammar::unite(whole.text, part.text);
  const auto append = [](auto& to, auto& from, const auto& is_whole) {
    if (std::any_of(to.begin(), to.end(), is_whole)) return;
    if (std::any_of(from.begin(), from.end(), is_whole)) to.clear();
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    expect_few(to, "branches");
  };
  append(whole.numbers, part.numbers, is_all);
  append(whole.lists, part.lists, [&](const ListShape& shape) {
    return shape.prefix.empty() && shape.rest == sets_.whole() && shape.min == 0 && shape.max == kNoMax &&
           shape.contains.empty() && !shape.unique;
  });
  append(whole.objects, part.objects, [&](const ObjectShape& shape) {
    return shape.properties.empty() && shape.rest.size() == 1 && !shape.rest[0].keys && !shape.declares &&
           shape.rest[0].value == sets_.whole() && shape.some.empty() && shape.min == 0 && shape.max == kNoMax;
  });
}

void FormAlgebra::Union::add(Form part) {
  size_t count = 1;
  for (; !parts_.empty() && parts_.back().count == count; parts_.pop_back(), count *= 2) {
    algebra_.unite(parts_.back().form, std::move(part));
    part = std::move(parts_.back().form);
  }
  parts_.push_back({std::move(part), count});
}

Form FormAlgebra::Union::whole() && {
  Form whole;
  for (; !parts_.empty(); parts_.pop_back()) {
    algebra_.unite(parts_.back().form, std::move(whole));
    whole = std::move(parts_.back().form);
  }
  return whole;
}

std::optional<NumberPart> FormAlgebra::intersection(const NumberPart& first, const NumberPart& second) {
  NumberPart part = first;
  part.set = grammar::intersection(first.set, second.set);
  part.fraction |= second.fraction;
  part.not_multiples.insert(part.not_multiples.end(), second.not_multiples.begin(), second.not_multiples.end());
  return possible_bounds(part) ? std::optional(std::move(part)) : std::nullopt;
}

std::optional<ListShape> FormAlgebra::intersection(const ListShape& first, const ListShape& second) {
  ListShape shape;
  shape.min = std::max(first.min, second.min);
  shape.max = std::min(first.max, second.max);
  shape.unique = first.unique ? first.unique : second.unique;
  const size_t listed = std::max(first.prefix.size(), second.prefix.size());
  charge(listed + first.contains.size() + second.contains.size());
  for (size_t i = 0; i < listed && i < shape.max; ++i) {
    const SetId item = both(first.item(i), second.item(i));
    if (item == sets_.nothing())
      shape.max = static_cast<uint32_t>(i);
    else
      shape.prefix.push_back(item);
  }
  shape.rest = both(first.rest, second.rest);
  if (shape.rest == sets_.nothing()) shape.max = std::min(shape.max, static_cast<uint32_t>(shape.prefix.size()));
  shape.contains = first.contains;
  shape.contains.insert(shape.contains.end(), second.contains.begin(), second.contains.end());
  for (const ListShape::Contains& contains : shape.contains) {
    if (contains.min > contains.max || (contains.min > 0 && contains.set == sets_.nothing())) return std::nullopt;
    if (contains.min > kNoMax - 1 - contains.from) return std::nullopt;
    if (contains.min > 0) shape.min = std::max(shape.min, contains.from + contains.min);
  }
  return shape.min <= shape.max ? std::optional(std::move(shape)) : std::nullopt;
}

std::vector<ObjectShape::Keys> FormAlgebra::rest(const ObjectShape& first, const ObjectShape& second) {
  std::vector<ObjectShape::Keys> result;
  for (const ObjectShape::Keys& one : first.rest)
    for (const ObjectShape::Keys& other : second.rest) {
      ObjectShape::Keys part = one.keys ? one : other;
      if (one.keys && other.keys && &one.keys->node() != &other.keys->node()) {
        part.keys = grammar::both({*one.keys, *other.keys});
        if (!possible(*part.keys)) continue;
      }
      part.value = both(one.value, other.value);
      if (part.value != sets_.nothing()) result.push_back(std::move(part));
      if (result.size() > kMaxShapes) throw Refusal("", "", "more than 1,024 combinations of patterns", "fewer");
    }
  return result;
}

// Properties stand as in the first shape, then as in the second; one that only the second declares stands as there.
std::optional<ObjectShape> FormAlgebra::intersection(const ObjectShape& first, const ObjectShape& second) {
  using Property = ObjectShape::Property;
  ObjectShape shape;
  shape.min = std::max(first.min, second.min);
  shape.max = std::min(first.max, second.max);
  shape.declares = first.declares || second.declares;
  shape.extended = first.extended || second.extended;
  charge(first.properties.size() + second.properties.size() + first.some.size() + second.some.size());
  std::unordered_map<std::string_view, const Property*> in_first, in_second;
  for (const Property& property : first.properties) in_first.emplace(property.name, &property);
  for (const Property& property : second.properties) in_second.emplace(property.name, &property);
  uint32_t required = 0;
  bool possible = true;
  const auto add = [&](const Property* one, const Property* other) {
    Property property = one ? *one : *other;
    property.value = both(one ? one->value : rest_value(first, property.name),
                          other ? other->value : rest_value(second, property.name));
    property.required = (one && one->required) || (other && other->required);
    property.declared = (one && one->declared) || (other && other->declared);
    required += property.required;
    possible = possible && !(property.required && property.value == sets_.nothing());
    shape.properties.push_back(std::move(property));
  };
  for (const Property& one : first.properties) {
    const auto at = in_second.find(one.name);
    const Property* other = at == in_second.end() ? nullptr : at->second;
    if (one.declared || !other || !other->declared) add(&one, other);
  }
  for (const Property& other : second.properties) {
    const auto at = in_first.find(other.name);
    const Property* one = at == in_first.end() ? nullptr : at->second;
    if (!one || (other.declared && !one->declared)) add(one, &other);
  }
  if (!possible) return std::nullopt;
  if (required > shape.max || shape.min > shape.max) return std::nullopt;
  shape.rest = rest(first, second);
  shape.some = first.some;
  shape.some.insert(shape.some.end(), second.some.begin(), second.some.end());
  return settle(shape) ? std::optional(std::move(shape)) : std::nullopt;
}

// Without other properties, "some property" is one of those that are listed: where none fits, no object does, and
// where one alone fits, it is required.
bool FormAlgebra::settle(ObjectShape& shape) {
  if (shape.some.empty() || !shape.rest.empty()) return true;
  std::vector<ObjectShape::Keys> open;
  for (ObjectShape::Keys& some : shape.some) {
    ObjectShape::Property* only = nullptr;
    size_t fitting = 0;
    for (ObjectShape::Property& property : shape.properties) {
      if (property.value == sets_.nothing()) continue;
      if (some.keys && !holds(*some.keys, property.name, expressions_)) continue;
      const bool met = property.required && some.value == sets_.whole();
      fitting = met ? 1 : fitting + 1;
      only = &property;
      if (met) break;
    }
    if (!only) return false;
    if (fitting > 1) {
      open.push_back(std::move(some));
      continue;
    }
    only->required = true;
    only->value = both(only->value, some.value);
    if (only->value == sets_.nothing()) return false;
  }
  shape.some = std::move(open);
  return true;
}

}  // namespace lfm2::grammar
