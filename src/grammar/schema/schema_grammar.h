// JSON Schema to grammar: every text of the grammar is JSON that meets the schema. Properties come in the order of the
// schema, others after them. What is not computed is refused, never left out.
#pragma once

#include <string_view>

#include "grammar/matcher/grammar.h"

namespace lfm2::grammar {

struct SchemaOptions {
  // Between tokens nothing, a blank, or a line feed with up to 64 blanks. False: ", " and ": " alone.
  bool any_whitespace = true;
  // Objects that declare properties have no others, unless the schema has a keyword about others.
  bool closed_objects = false;
};

// Finished. Refusal, with the place in the schema.
Grammar schema_grammar(std::string_view schema, const SchemaOptions& options = {}, const Limits& limits = {});

}  // namespace lfm2::grammar
