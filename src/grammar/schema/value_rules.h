// Rules for sets of values: one rule a set, so that recursive schemas become recursive rules. Values without lists and
// objects are expressions within the terminals around them.
#pragma once

#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "grammar/matcher/grammar.h"
#include "grammar/schema/notation.h"
#include "grammar/schema/schema_form.h"

namespace lfm2::grammar {

class ValueRules {
 public:
  // How the properties of an object are written around their values.
  struct ObjectSpelling {
    Expr open, close, empty, comma;
    std::function<Expr(const TextForm&)> key;  // with what follows it
  };

  // All must outlive it. `closed`: see SchemaOptions::closed_objects.
  ValueRules(Grammar& grammar, SchemaForms& forms, const Notation& notation, bool closed);

  // The texts of a value of the set. Rules that it needs are made by write().
  Sequence value(SetId set);
  Sequence object(const ObjectShape& shape, const ObjectSpelling& spelling);
  // Makes all rules that were asked for, and those that they ask for. Refusal with the place in the schema.
  void write();

  Grammar& grammar() { return grammar_; }
  SchemaForms& forms() { return forms_; }
  const Notation& notation() const { return notation_; }

 private:
  Expr scalars(const Form& form);
  Expr number(const NumberPart& part);
  void write(SetId set, RuleId rule);

  Grammar& grammar_;
  SchemaForms& forms_;
  const Notation& notation_;
  const bool closed_;
  std::unordered_map<SetId, RuleId> rules_;
  std::unordered_map<SetId, Expr> scalars_;
  std::deque<SetId> open_;
};

// Appends a text; neighbouring texts become one.
void append(Sequence& sequence, Expr text, Expressions& expressions);
void append(Sequence& sequence, const Sequence& part, Expressions& expressions);

}  // namespace lfm2::grammar
