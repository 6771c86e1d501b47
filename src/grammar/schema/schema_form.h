// The normal form (value_form.h) of every set of values that a schema speaks of: intersections for keywords that stand
// together, unions for branches, and complements for not, oneOf, if and dependencies, where those are exact.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "grammar/schema/form_algebra.h"

namespace lfm2::grammar {

class SchemaForms : private FormAlgebra::Emptiness {
 public:
  // Both must outlive it.
  SchemaForms(SchemaReader& reader, Expressions& expressions);
  SchemaForms(const SchemaForms&) = delete;
  SchemaForms& operator=(const SchemaForms&) = delete;

  SetTable& sets() { return sets_; }
  // Computed at the first call; the reference stays valid. Refusal, with the place in the schema, for what is not
  // computed, for a schema that needs itself at the same value, and where there are too many combinations.
  const Form& form(SetId set);
  bool possible(const TextSet& set) { return algebra_.possible(set); }
  // The place of the schema that a set came from, for refusals.
  std::string pointer(SetId set);

 private:
  // A schema is met that is being computed further out: what is asked is not known yet.
  struct Unfinished {};
  using Kind = Assertion::Kind;

  bool surely_empty(SetId set) override;
  bool surely_empty(const Form& form);
  const Form& form(const Literal& literal);
  Form compute(const Literal& literal);
  Form claim(const Assertion& assertion, bool positive);
  Form simple_claim(const Assertion& assertion, bool positive);
  Form text_claim(const Assertion& assertion, bool positive);
  Form number_claim(const Assertion& assertion, bool positive);
  Form object_claim(const Assertion& assertion, bool positive);
  Form list_claim(const Assertion& assertion, bool positive);

  Form branches(const Assertion& assertion, bool all, bool positive);
  Form exactly_one(const Assertion& assertion);
  Form not_exactly_one(const Assertion& assertion);
  Form condition(const Assertion& assertion, bool positive);
  Form types(const Assertion& assertion, bool positive);
  Form values(const Assertion& assertion, bool positive);
  void other_than(const JsonNode& value, Form& rest);
  void add_value(const JsonNode& value, Form& form);
  Form properties(const Assertion& assertion);
  Form not_properties(const Assertion& assertion);
  Form required(const Assertion& assertion, bool positive);
  Form dependency(const Assertion& assertion, bool positive);
  Form property_names(const Assertion& assertion, bool positive);
  Form contains(const Assertion& assertion, bool positive);

  const Form& form(SchemaId schema, bool positive) { return form(sets_.of(schema, positive)); }
  // The object shapes alone that have a property, or have it not.
  ObjectShape with_property(const std::string& name, SetId value, bool is_required) const;
  Form only(std::vector<ObjectShape> shapes) const;
  Form only(std::vector<ListShape> shapes) const;
  // Counts 0 to min - 1 and max + 1 to without end, of those that there are.
  static std::vector<std::pair<uint32_t, uint32_t>> outside(uint32_t min, uint32_t max);

  SchemaReader& reader_;
  Expressions& expressions_;
  SetTable sets_;
  FormAlgebra algebra_;
  std::unordered_map<SetId, Form> forms_;
  std::map<std::pair<SchemaId, bool>, Form> literals_;
  std::map<std::pair<SchemaId, bool>, int> open_;  // being computed, at which depth of looking into values
  int looks_ = 0;
};

}  // namespace lfm2::grammar
