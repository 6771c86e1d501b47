// The tokens of a model as masks need them: sorted into slices, each with a trie and a mask of its own. Where an
// expression allows every text of a slice's language, its mask takes the whole slice without a look at the tokens.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/matcher/token_trie.h"
#include "text/vocabulary.h"

namespace lfm2 {
class Tokenizer;
}

namespace lfm2::grammar {

// The texts of one slice: any number of characters of a kind, in whole UTF-8.
struct SliceLanguage {
  std::bitset<128> ascii;     // the ASCII characters among them
  bool beyond_ascii = false;  // whether all other characters are
};

// Made once for a tokenizer, then shared by all grammars. It never changes.
class TokenTable {
 public:
  struct Slice {
    SliceLanguage language;  // every token of the slice is one of its texts
    TokenTrie trie;
    std::vector<uint32_t> mask;  // the tokens' bits
  };

  // Special tokens have no text here: they are matched by their ids alone. `vocabulary` is the number of logits.
  // Error(kData) where it is below the tokenizer's size.
  TokenTable(const Tokenizer& tokenizer, size_t vocabulary);
  // `texts` by id; an empty text is a token without bytes. Without `sliced` all tokens are in rest().
  explicit TokenTable(std::vector<std::string> texts, bool sliced = true);

  size_t size() const { return texts_.size(); }
  size_t mask_words() const { return (texts_.size() + 31) / 32; }
  // Empty for special tokens, for ids without a token, and for those that no trie has.
  std::string_view bytes(TokenId id) const;

  std::span<const Slice> slices() const { return slices_; }
  // The tokens of no slice.
  const TokenTrie& rest() const { return rest_; }

 private:
  std::vector<std::string> texts_;
  std::vector<Slice> slices_;
  TokenTrie rest_;
};

}  // namespace lfm2::grammar
