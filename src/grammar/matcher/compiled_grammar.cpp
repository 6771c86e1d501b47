#include "grammar/matcher/compiled_grammar.h"

#include <utility>

namespace lfm2::grammar {

CompiledGrammar::CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens) try
    : grammar_(std::move(grammar)),
      compiled_(grammar_.expressions().mark()),
      tokens_(std::move(tokens)),
      states_(grammar_),
      masks_(grammar_, states_, *tokens_) {
} catch (const OutOfFuel&) {
  throw Refusal("", "", "too many ways to begin a text", "fewer alternatives");
}

size_t CompiledGrammar::memory() const {
  const std::lock_guard lock(mutex_);
  return grammar_.expressions().memory() + states_.memory() + masks_.memory();
}

void CompiledGrammar::forget() {
  grammar_.expressions().forget(compiled_);
  states_.clear();
  masks_.forget();
  ++generation_;
}

void CompiledGrammar::make_room() {
  if (states_.memory() > grammar_.limits().max_state_bytes) forget();
}

}  // namespace lfm2::grammar
