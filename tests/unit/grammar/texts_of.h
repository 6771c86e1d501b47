// Whether grammars accept whole texts, for the tests of what makes grammars.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/expression/refusal.h"
#include "grammar/matcher/matcher.h"
#include "grammar/schema/schema_grammar.h"

namespace lfm2::grammar {

class Acceptor {
 public:
  // Tokens: an end (0) and two without text (1, 2), as the marks of calls are.
  explicit Acceptor(Grammar grammar)
      : grammar_(std::make_shared<CompiledGrammar>(
            std::move(grammar), std::make_shared<const TokenTable>(std::vector<std::string>{"", "", ""}, false))) {}

  bool operator()(std::string_view text) const {
    Matcher matcher(grammar_, {0});
    return matcher.take_bytes(text) && matcher.may_end();
  }
  // The text between tokens 1 and 2.
  bool call_list(std::string_view text) const {
    Matcher matcher(grammar_, {0});
    return matcher.take(1) && matcher.take_bytes(text) && matcher.take(2) && matcher.may_end();
  }

 private:
  std::shared_ptr<CompiledGrammar> grammar_;
};

inline Acceptor schema(std::string_view text, const SchemaOptions& options = {}) {
  return Acceptor(schema_grammar(text, options));
}

// The message of the refusal of a schema; "" where it is compiled.
inline std::string refusal_of(std::string_view text) {
  try {
    schema_grammar(text);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

}  // namespace lfm2::grammar
