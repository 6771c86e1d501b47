#include "grammar/regex_choice.h"

#include <fmt/format.h>

#include "grammar/expression/pattern.h"
#include "grammar/expression/refusal.h"
#include "grammar/expression/text_set.h"

namespace lfm2::grammar {
namespace {

// Calls `make` for the one expression of a grammar, and names the field in what it refuses.
template <class Make>
Grammar grammar_of(std::string_view field, Limits limits, const Make& make) {
  try {
    Grammar grammar(limits);
    const RuleId start = grammar.add_rule();
    grammar.set_alternatives(start, {{Symbol::text(make(grammar.expressions()))}});
    grammar.set_start(start);
    grammar.finish();
    return grammar;
  } catch (const Refusal& refusal) {
    throw refusal.at("", std::string(field));
  }
}

}  // namespace

Grammar regex_grammar(std::string_view expression, Limits limits) {
  return grammar_of("regex", limits, [&](Expressions& expressions) {
    if (expression.size() > limits.text_bytes)
      throw Refusal("", "", fmt::format("{} bytes", expression.size()), fmt::format("at most {}", limits.text_bytes));
    return lower(parse_pattern(expression, Anchors::kWhole), Spelling::kRaw, expressions);
  });
}

Grammar choice_grammar(std::span<const std::string> choices, Limits limits) {
  return grammar_of("choice", limits, [&](Expressions& expressions) {
    if (choices.empty()) throw Refusal("", "", "an empty list", "one text or more");
    return expressions.texts({choices.begin(), choices.end()});
  });
}

}  // namespace lfm2::grammar
