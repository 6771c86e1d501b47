#include "grammar/schema/value_rules.h"

#include "grammar/expression/refusal.h"
#include "grammar/schema/list_rules.h"
#include "grammar/schema/object_rules.h"

namespace lfm2::grammar {

void append(Sequence& sequence, Expr text, Expressions& expressions) {
  if (!sequence.empty() && sequence.back().kind == Symbol::Kind::kText)
    sequence.back() = Symbol::text(expressions.concat(sequence.back().expression(), text));
  else
    sequence.push_back(Symbol::text(text));
}

void append(Sequence& sequence, const Sequence& part, Expressions& expressions) {
  for (const Symbol& symbol : part)
    if (symbol.kind == Symbol::Kind::kText)
      append(sequence, symbol.expression(), expressions);
    else
      sequence.push_back(symbol);
}

ValueRules::ValueRules(Grammar& grammar, SchemaForms& forms, const Notation& notation, bool closed)
    : grammar_(grammar), forms_(forms), notation_(notation), closed_(closed) {}

Sequence ValueRules::value(SetId set) {
  const Form& form = forms_.form(set);
  if (form.lists.empty() && form.objects.empty()) {
    const auto known = scalars_.find(set);
    if (known != scalars_.end()) return {Symbol::text(known->second)};
    try {
      return {Symbol::text(scalars_.emplace(set, scalars(form)).first->second)};
    } catch (const Refusal& refusal) {
      throw refusal.at_if_nowhere(forms_.pointer(set), "");
    }
  }
  const auto known = rules_.find(set);
  if (known != rules_.end()) return {Symbol::rule(known->second)};
  const RuleId rule = grammar_.add_rule();
  rules_.emplace(set, rule);
  open_.push_back(set);
  return {Symbol::rule(rule)};
}

void ValueRules::write() {
  while (!open_.empty()) {
    const SetId set = open_.front();
    open_.pop_front();
    try {
      write(set, rules_.at(set));
    } catch (const Refusal& refusal) {
      throw refusal.at_if_nowhere(forms_.pointer(set), "");
    }
  }
}

void ValueRules::write(SetId set, RuleId rule) {
  const Form& form = forms_.form(set);
  std::vector<Sequence> alternatives;
  if (const Expr simple = scalars(form); simple != notation_.expressions().nothing())
    alternatives.push_back({Symbol::text(simple)});
  for (const ListShape& shape : form.lists) alternatives.push_back(ListRules(*this, shape).write());
  const Notation& n = notation_;
  const ObjectSpelling spelling{n.open_object(), n.close_object(), n.empty_object(), n.comma(),
                                [&](const TextForm& keys) { return n.expressions().concat(n.text(keys), n.colon()); }};
  for (const ObjectShape& shape : form.objects) alternatives.push_back(object(shape, spelling));
  if (alternatives.size() > grammar_.limits().max_places)
    throw Refusal("", "", fmt::format("{} lists and objects that a value may be", alternatives.size()),
                  fmt::format("at most {}", grammar_.limits().max_places));
  grammar_.set_alternatives(rule, std::move(alternatives));
}

Sequence ValueRules::object(const ObjectShape& shape, const ObjectSpelling& spelling) {
  return ObjectRules(*this, shape, spelling, closed_ && shape.declares && !shape.extended).write();
}

Expr ValueRules::scalars(const Form& form) {
  std::vector<Expr> parts;
  if (form.null) parts.push_back(notation_.null());
  if (form.no) parts.push_back(notation_.boolean(false));
  if (form.yes) parts.push_back(notation_.boolean(true));
  if (!form.text.empty()) parts.push_back(notation_.text(form.text));
  for (const NumberPart& part : form.numbers) parts.push_back(number(part));
  return notation_.expressions().either(parts);
}

// A single number has one spelling, an integer possibly 1.0 beside 1. What is no integer, or no multiple, is known of
// spellings without exponent.
Expr ValueRules::number(const NumberPart& part) {
  Expressions& e = notation_.expressions();
  const NumberSet& set = part.set;
  if (set.min && set.max && *set.min == *set.max) {
    const Expr only = e.text(set.min->text());
    const bool pointed = notation_.points_integers() && set.min->is_integer() && !set.integer;
    return pointed ? e.either({only, e.text(set.min->text() + ".0")}) : only;
  }
  if (!part.fraction && part.not_multiples.empty()) return number_expression(set, e);
  std::vector<Expr> parts = {set.integer ? number_expression(set, e) : decimal_values(set, e)};
  NumberSet others;
  others.integer = true;
  if (part.fraction) parts.push_back(e.complement(decimal_values(others, e)));
  others.integer = false;
  for (const Decimal& step : part.not_multiples) {
    others.multiples = {step};
    parts.push_back(e.complement(decimal_values(others, e)));
  }
  return e.both(parts);
}

}  // namespace lfm2::grammar
