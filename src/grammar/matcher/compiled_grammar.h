// A grammar with all that the matchers of its texts share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "grammar/matcher/grammar.h"
#include "grammar/matcher/matcher_states.h"
#include "grammar/matcher/token_mask.h"
#include "grammar/matcher/token_table.h"

namespace lfm2::grammar {

// Threads may use matchers of one compiled grammar at once; each holds its lock while it works.
class CompiledGrammar {
 public:
  // `tokens` must be those of the model. Error(kSoftware) for a grammar that is not finished; Refusal, without pointer,
  // where a text could begin in too many ways.
  CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens);

  const TokenTable& tokens() const { return *tokens_; }
  // Memory in bytes of expressions, states and masks.
  size_t memory() const;

 private:
  friend class Matcher;
  // The lock must be held by callers of these. forget() drops all that matching made; make_room() does where the states
  // take too much memory.
  void forget();
  void make_room();

  Grammar grammar_;
  const Expressions::Mark compiled_;
  const std::shared_ptr<const TokenTable> tokens_;
  MatcherStates states_;
  TokenMasks masks_;
  uint64_t generation_ = 0;  // changes where the indices of states become void
  mutable std::mutex mutex_;
};

}  // namespace lfm2::grammar
