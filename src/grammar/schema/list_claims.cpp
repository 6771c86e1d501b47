// The keywords of lists as shapes.
#include "grammar/expression/refusal.h"
#include "grammar/schema/schema_form.h"

namespace lfm2::grammar {

Form SchemaForms::only(std::vector<ListShape> shapes) const {
  Form form;
  form.lists = std::move(shapes);
  return form;
}

Form SchemaForms::list_claim(const Assertion& assertion, bool positive) {
  if (assertion.kind == Kind::kContains) return contains(assertion, positive);
  std::vector<ListShape> shapes;
  if (assertion.kind == Kind::kUniqueItems) {
    if (!positive) throw Refusal("", "", "true under a complement", "no complement of it");
    shapes.push_back(algebra_.any_list());
    shapes.back().unique = assertion.place;
  } else if (assertion.kind == Kind::kItemCount) {
    const auto ranges =
        positive ? std::vector{std::pair(assertion.min, assertion.max)} : outside(assertion.min, assertion.max);
    for (const auto& [min, max] : ranges) {
      shapes.push_back(algebra_.any_list());
      shapes.back().min = min;
      shapes.back().max = max;
    }
  } else if (positive) {
    ListShape& shape = shapes.emplace_back(algebra_.any_list());
    for (const SchemaId schema : assertion.schemas) shape.prefix.push_back(sets_.of(schema));
    if (assertion.rest) shape.rest = sets_.of(*assertion.rest);
  } else {
    const uint32_t listed = static_cast<uint32_t>(assertion.schemas.size());
    for (uint32_t i = 0; i < listed; ++i) {
      ListShape& shape = shapes.emplace_back(algebra_.any_list());
      shape.prefix.assign(i, sets_.whole());
      shape.prefix.push_back(sets_.of(assertion.schemas[i], false));
      shape.min = i + 1;
    }
    if (assertion.rest) {
      ListShape& shape = shapes.emplace_back(algebra_.any_list());
      shape.min = listed + 1;
      shape.contains.push_back({sets_.of(*assertion.rest, false), 1, kNoMax, listed});
    }
  }
  return positive ? algebra_.with(std::move(shapes)) : only(std::move(shapes));
}

Form SchemaForms::contains(const Assertion& assertion, bool positive) {
  const SchemaId schema = assertion.schemas.front();
  const auto ranges =
      positive ? std::vector{std::pair(assertion.min, assertion.max)} : outside(assertion.min, assertion.max);
  std::vector<ListShape> shapes;
  for (const auto& [min, max] : ranges) {
    if (min > max) continue;
    ListShape& shape = shapes.emplace_back(algebra_.any_list());
    if (max == 0)
      shape.rest = sets_.of(schema, false);
    else if (min > 0 || max != kNoMax)
      shape.contains.push_back({sets_.of(schema), min, max, 0});
    shape.min = min;
  }
  return positive ? algebra_.with(std::move(shapes)) : only(std::move(shapes));
}

}  // namespace lfm2::grammar
