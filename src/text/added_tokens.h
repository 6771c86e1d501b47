// Finds added tokens in the raw text before it is cut into pieces, also inside words.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"
#include "text/work_limit.h"

namespace lfm2 {

struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool special = false;
  bool normalized = false;              // searched after the others, in the text between those
  bool single_word = false;             // matches only if no word character is next to it
  bool lstrip = false, rstrip = false;  // the match includes whitespace on this side
};

// A trie of texts, which finds the longest one that begins at a place.
class TextTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  void add(std::string_view text, uint32_t value);
  bool empty() const { return nodes_.size() == 1; }
  // The first place at `from` or later where a text begins, and the longest such text. If there is none, the place is
  // the size of `text`.
  struct Found {
    size_t begin, end;
    uint32_t value;
  };
  Found find(std::string_view text, size_t from, WorkLimit& limit) const;

 private:
  struct Node {
    uint32_t value = kNone;
    uint32_t child = 0, next = 0;  // 0: none
    char byte = 0;
  };
  uint32_t child(uint32_t node, char byte, uint64_t& steps) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<uint32_t, 256> first_{};  // children of the root
  std::bitset<256 * 256> pairs_;       // the first two bytes of some text
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  const std::vector<AddedToken>& list() const { return tokens_; }

  // Calls on_text(text) and on_token(id) in the order of the text. Normalized tokens are searched in the text between
  // the others. Error(kData) if the search exceeds the limit.
  template <class OnText, class OnToken>
  void split(std::string_view text, WorkLimit& limit, const OnText& on_text, const OnToken& on_token) const {
    split_by(
        raw_, text, limit, [&](std::string_view left) { split_by(normalized_, left, limit, on_text, on_token); },
        on_token);
  }

 private:
  struct Match {
    size_t begin, end;
    bool taken;
  };

  template <class OnText, class OnToken>
  void split_by(const TextTrie& trie, std::string_view text, WorkLimit& limit, const OnText& on_text,
                const OnToken& on_token) const {
    size_t done = 0;
    for (size_t from = 0; !trie.empty();) {
      const TextTrie::Found found = trie.find(text, from, limit);
      if (found.begin == text.size()) break;
      from = found.end;
      const AddedToken& token = tokens_[found.value];
      const Match match = widened(token, text, found, done);
      if (!match.taken) continue;
      if (match.begin > done) on_text(text.substr(done, match.begin - done));
      on_token(token.id);
      done = match.end;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

  // The match extended by the whitespace that the token includes.
  static Match widened(const AddedToken& token, std::string_view text, const TextTrie::Found& found, size_t done);

  std::vector<AddedToken> tokens_;
  TextTrie raw_, normalized_;  // values are indices of tokens_
};

}  // namespace lfm2
