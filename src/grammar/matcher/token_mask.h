// Which tokens a state allows. The mask of a state is put together from those of its places:
//
//   - tokens that stay within the place's expression. They depend on the expression alone, so they are found once for
//     all states that have it. Whole slices of the vocabulary are taken without a walk where the expression allows
//     every text of the slice's language.
//   - tokens that leave it: at the nodes of the trie where the expression may end, the rest of the token is followed
//     through the states of what comes after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/matcher/matcher_states.h"
#include "grammar/matcher/token_table.h"

namespace lfm2::grammar {

// Not thread-safe.
class TokenMasks {
 public:
  // All must outlive this.
  TokenMasks(Grammar& grammar, MatcherStates& states, const TokenTable& tokens);

  // Sets the bits of the tokens that keep the state alive, clears the others. OutOfFuel.
  void write(StateId state, std::span<uint32_t> words);

  // Bytes of the masks that are kept.
  size_t memory() const { return memory_; }
  // Forgets all masks, when states and expressions are forgotten.
  void forget();

 private:
  // A node of a trie where an expression may end, with longer tokens below it.
  struct Exit {
    uint32_t trie, node;
  };
  struct Inner {
    std::vector<TokenId> ids;     // the tokens that stay within the expression, or
    std::vector<uint32_t> words;  // the same as a mask, where they are many
    std::vector<Exit> exits;
    uint64_t visits = 0;  // of trie nodes
  };
  struct StateMask {
    std::vector<uint32_t> words;  // empty until the mask was asked for twice
  };

  const TokenTrie& trie(size_t index) const;
  const Inner& inner(Expr expression);
  bool takes_whole(Expr expression, size_t slice);
  void walk_inner(Expr expression, uint32_t trie, Inner& inner);
  void walk_exit(const Exit& exit, StateId state, const ByteSet& first, std::span<uint32_t> words);
  void compute(StateId state, std::span<uint32_t> words);
  void charge(uint64_t visits);

  Grammar& grammar_;
  MatcherStates& states_;
  const TokenTable& tokens_;
  std::vector<std::optional<Expr>> languages_;  // of the slices, made when first used
  std::unordered_map<uint32_t, Inner> inner_;   // by expression
  std::unordered_map<StateId, StateMask> state_masks_;
  size_t memory_ = 0;
  uint64_t fuel_ = 0;  // of the current mask
  std::vector<Expr> expression_path_;
  std::vector<StateId> state_path_;
};

}  // namespace lfm2::grammar
