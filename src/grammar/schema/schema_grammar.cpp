#include "grammar/schema/schema_grammar.h"

#include "grammar/expression/refusal.h"
#include "grammar/schema/value_rules.h"

namespace lfm2::grammar {

Grammar schema_grammar(std::string_view schema, const SchemaOptions& options, const Limits& limits) {
  Grammar grammar(limits);
  const JsonTree tree(schema);
  SchemaReader reader(tree.root());
  SchemaForms forms(reader, grammar.expressions());
  const Notation notation(grammar.expressions(), Notation::Kind::kJson, options.any_whitespace);
  ValueRules rules(grammar, forms, notation, options.closed_objects);
  const RuleId start = grammar.add_rule();
  grammar.set_alternatives(start, {rules.value(forms.sets().of(reader.root()))});
  rules.write();
  grammar.set_start(start);
  grammar.finish();
  return grammar;
}

}  // namespace lfm2::grammar
