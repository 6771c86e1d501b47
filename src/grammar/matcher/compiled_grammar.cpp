#include "grammar/matcher/compiled_grammar.h"

#include <utility>

namespace lfm2::grammar {

CompiledGrammar::CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens)
    : grammar_(std::move(grammar)),
      tokens_(std::move(tokens)),
      states_(grammar_),
      masks_(grammar_, states_, *tokens_) {}

size_t CompiledGrammar::memory() const {
  const std::lock_guard lock(mutex_);
  return grammar_.expressions().memory() + states_.memory() + masks_.memory();
}

void CompiledGrammar::make_room() {
  if (states_.memory() <= grammar_.limits().max_state_bytes) return;
  states_.clear();
  masks_.forget_states();
  ++generation_;
}

}  // namespace lfm2::grammar
