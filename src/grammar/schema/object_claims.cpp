// The keywords of objects as shapes.
#include <string_view>
#include <unordered_set>

#include "grammar/expression/pattern.h"
#include "grammar/expression/refusal.h"
#include "grammar/schema/schema_form.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxClasses = 128;

// Keys that match some of the patterns and none of the others, and what their values are then.
struct KeyClass {
  std::vector<TextSet> conditions;
  std::optional<SetId> value;  // nothing: no pattern matches
};

std::optional<TextSet> keys_of(const KeyClass& keys) {
  if (keys.conditions.empty()) return std::nullopt;
  return keys.conditions.size() == 1 ? keys.conditions.front() : both(keys.conditions);
}

TextSet pattern_of(const Assertion::PatternSchema& pattern) {
  try {
    return parse_pattern(pattern.pattern->key, Anchors::kSearch);
  } catch (const Refusal& refusal) {
    throw refusal.at(pattern.pattern->parent->pointer(), pattern.pattern->key);
  }
}

}  // namespace

ObjectShape SchemaForms::with_property(const std::string& name, SetId value, bool is_required) const {
  ObjectShape shape = algebra_.any_object();
  shape.properties.push_back({name, value, is_required});
  return shape;
}

Form SchemaForms::only(std::vector<ObjectShape> shapes) const {
  Form form;
  form.objects = std::move(shapes);
  return form;
}

Form SchemaForms::object_claim(const Assertion& assertion, bool positive) {
  switch (assertion.kind) {
    case Kind::kProperties:
      return positive ? properties(assertion) : not_properties(assertion);
    case Kind::kRequired:
      return required(assertion, positive);
    case Kind::kPropertyNames:
      return property_names(assertion, positive);
    case Kind::kDependentRequired:
    case Kind::kDependentSchema:
      return dependency(assertion, positive);
    default:
      break;
  }
  std::vector<ObjectShape> shapes;
  const auto ranges =
      positive ? std::vector{std::pair(assertion.min, assertion.max)} : outside(assertion.min, assertion.max);
  for (const auto& [min, max] : ranges) {
    shapes.push_back(algebra_.any_object());
    shapes.back().min = min;
    shapes.back().max = max;
  }
  return positive ? algebra_.with(std::move(shapes)) : only(std::move(shapes));
}

// Keys fall into classes by the patterns that they match; one pattern more divides each class that it cuts.
Form SchemaForms::properties(const Assertion& assertion) {
  ObjectShape shape;
  std::vector<TextSet> patterns;
  std::vector<KeyClass> classes(1);
  for (const Assertion::PatternSchema& pattern : assertion.patterns) {
    patterns.push_back(pattern_of(pattern));
    const SetId value = sets_.of(pattern.schema);
    std::vector<KeyClass> divided;
    for (const KeyClass& old : classes) {
      KeyClass inside = old, outside = old;
      inside.conditions.push_back(patterns.back());
      outside.conditions.push_back(complement(patterns.back()));
      inside.value = old.value ? sets_.both(*old.value, value) : value;
      for (KeyClass* part : {&inside, &outside})
        if (algebra_.possible(*keys_of(*part))) divided.push_back(std::move(*part));
    }
    classes = std::move(divided);
    if (classes.size() > kMaxClasses)
      throw Refusal(pattern.pattern->parent->parent->pointer(), "patternProperties",
                    "patterns that divide keys into more than 128 classes", "fewer patterns that overlap");
  }
  for (size_t i = 0; i < assertion.names.size(); ++i) {
    SetId value = sets_.of(assertion.schemas[i]);
    for (size_t p = 0; p < patterns.size(); ++p)
      if (holds(patterns[p], assertion.names[i], expressions_))
        value = sets_.both(value, sets_.of(assertion.patterns[p].schema));
    shape.properties.push_back({assertion.names[i], value, false, true});
  }
  const SetId rest = assertion.rest ? sets_.of(*assertion.rest) : sets_.whole();
  for (const KeyClass& keys : classes)
    if (const SetId value = keys.value.value_or(rest); value != sets_.nothing())
      shape.rest.push_back({keys_of(keys), value});
  shape.declares = assertion.declares;
  shape.extended = assertion.rest.has_value() || !assertion.patterns.empty();
  return algebra_.with(std::vector{std::move(shape)});
}

Form SchemaForms::not_properties(const Assertion& assertion) {
  std::vector<ObjectShape> shapes;
  for (size_t i = 0; i < assertion.names.size(); ++i)
    if (const SetId value = sets_.of(assertion.schemas[i], false); value != sets_.nothing())
      shapes.push_back(with_property(assertion.names[i], value, true));
  const auto add_some = [&](TextSet keys, SetId value) {
    if (value == sets_.nothing()) return;
    shapes.push_back(algebra_.any_object());
    shapes.back().some.push_back({std::move(keys), value});
  };
  std::vector<TextSet> others = {TextForm::of(assertion.names).complement().set()};
  for (const Assertion::PatternSchema& pattern : assertion.patterns) {
    const TextSet keys = pattern_of(pattern);
    add_some(keys, sets_.of(pattern.schema, false));
    others.push_back(complement(keys));
  }
  if (assertion.rest) add_some(both(others), sets_.of(*assertion.rest, false));
  return only(std::move(shapes));
}

Form SchemaForms::required(const Assertion& assertion, bool positive) {
  if (positive) {
    ObjectShape shape = algebra_.any_object();
    std::unordered_set<std::string_view> seen;
    for (const std::string& name : assertion.names)
      if (seen.insert(name).second) shape.properties.push_back({name, sets_.whole(), true});
    return algebra_.with(std::vector{std::move(shape)});
  }
  std::vector<ObjectShape> shapes;
  for (const std::string& name : assertion.names) shapes.push_back(with_property(name, sets_.nothing(), false));
  return only(std::move(shapes));
}

Form SchemaForms::dependency(const Assertion& assertion, bool positive) {
  const std::string& name = assertion.names.front();
  Form with = only({with_property(name, sets_.whole(), true)});
  if (assertion.kind == Kind::kDependentSchema) {
    with = algebra_.intersection(with, form(assertion.schemas.front(), positive));
  } else if (positive) {  // the names that are asked for come first
    for (size_t i = assertion.names.size(); i-- > 1;)
      with = algebra_.intersection(only({with_property(assertion.names[i], sets_.whole(), true)}), with);
  } else {
    Form without;
    for (size_t i = 1; i < assertion.names.size(); ++i)
      without.objects.push_back(with_property(assertion.names[i], sets_.nothing(), false));
    with = algebra_.intersection(with, without);
  }
  if (!positive) return with;
  with.objects.push_back(with_property(name, sets_.nothing(), false));
  return algebra_.with(std::move(with.objects));
}

Form SchemaForms::property_names(const Assertion& assertion, bool positive) {
  const TextForm& names = form(assertion.schemas.front(), positive).text;
  ObjectShape shape = algebra_.any_object();
  if (positive) {
    if (!names.is_all()) shape.rest = {{names.set(), sets_.whole()}};
    return algebra_.with(std::vector{std::move(shape)});
  }
  shape.some.push_back({names.set(), sets_.whole()});
  return only({std::move(shape)});
}

}  // namespace lfm2::grammar
