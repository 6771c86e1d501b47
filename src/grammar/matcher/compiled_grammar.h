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
  // `tokens` must be those of the model. Error(kSoftware) for a grammar that is not finished; Refusal.
  CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens);

  const TokenTable& tokens() const { return *tokens_; }
  // Memory in bytes of expressions, states and masks.
  size_t memory() const;

 private:
  friend class Matcher;
  // Drops the states where they take too much memory. The lock must be held.
  void make_room();

  Grammar grammar_;
  const std::shared_ptr<const TokenTable> tokens_;
  MatcherStates states_;
  TokenMasks masks_;
  uint64_t generation_ = 0;  // changes where the indices of states become void
  mutable std::mutex mutex_;
};

}  // namespace lfm2::grammar
