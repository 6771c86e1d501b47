// Follows one text through a grammar, token by token, and says which tokens may come next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/matcher/compiled_grammar.h"

namespace lfm2::grammar {

// One text of one sequence. What it allows is a function of the grammar and the tokens taken: never of time, of
// threads, or of other texts of the same grammar.
//
// OutOfFuel, where a call may throw it, leaves the text as it was.
class Matcher {
 public:
  // `ends`: the tokens that end the text (EOS), which are allowed where it may end and only there.
  Matcher(std::shared_ptr<CompiledGrammar> grammar, std::vector<TokenId> ends);

  // Appends a token. False, and nothing changes, where the grammar does not allow it. OutOfFuel.
  bool take(TokenId token);
  // Appends bytes that need not be those of a token. They count as one token in undo().
  bool take_bytes(std::string_view bytes);
  // Removes the last `tokens` tokens. Error(kSoftware) for more than taken().
  void undo(size_t tokens);
  size_t taken() const { return taken_.size(); }

  // Whether the text so far is a text of the grammar.
  bool may_end();
  // Whether it is, and none that begins with it is another one.
  bool must_end();
  // Whether an end was taken. Nothing is allowed after it.
  bool ended() const { return ended_; }
  // Sets the bit of each token that may come next, and clears all others: token t is bit t % 32 of word t / 32.
  // `words` has TokenTable::mask_words() elements. OutOfFuel.
  void mask(std::span<uint32_t> words);

 private:
  struct Taken {
    StateId before;
    TokenId token;  // kNoToken where `bytes` were taken
    std::string bytes;
  };
  static constexpr TokenId kNoToken = -1;

  // Calls `work` with the grammar's lock held and state_ valid.
  template <class Work>
  auto locked(const Work& work);
  void replay();
  StateId after_bytes(StateId state, std::string_view bytes);
  StateId after_token(StateId state, TokenId token);
  bool is_end(TokenId token) const;

  std::shared_ptr<CompiledGrammar> grammar_;
  std::vector<TokenId> ends_;
  std::vector<Taken> taken_;
  StateId state_ = MatcherStates::kDead;
  uint64_t generation_ = 0;  // CompiledGrammar's, to which the states belong
  bool ended_ = false;
};

}  // namespace lfm2::grammar
