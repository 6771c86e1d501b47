// Searches added tokens and the whitespace around them.
#include "text/added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode/unicode_categories.h"

namespace lfm2 {

namespace {

size_t byte_index(char byte) { return static_cast<uint8_t>(byte); }

// Bytes of the first character if it is in the set, else 0.
size_t leading(std::string_view text, const CodePointSet& set) {
  if (text.empty()) return 0;
  const Utf8Character character = first_character(text);
  return character.valid && contains(set, character.point) ? character.length : 0;
}

// The same for the last character.
size_t trailing(std::string_view text, const CodePointSet& set) {
  for (size_t length = 1; length <= std::min<size_t>(4, text.size()); ++length) {
    const std::string_view last = text.substr(text.size() - length);
    if ((byte_index(last[0]) & 0xc0) != 0x80) return leading(last, set) == length ? length : 0;
  }
  return 0;
}

}  // namespace

uint32_t TextTrie::child(uint32_t node, char byte, uint64_t& steps) const {
  uint32_t at = nodes_[node].child;
  for (; at != 0 && nodes_[at].byte != byte; ++steps) at = nodes_[at].next;
  ++steps;
  return at;
}

void TextTrie::add(std::string_view text, uint32_t value) {
  uint32_t node = 0;
  uint64_t ignored = 0;
  for (const char byte : text) {
    uint32_t next = child(node, byte, ignored);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({kNone, 0, nodes_[node].child, byte});
      nodes_[node].child = next;
      if (node == 0) first_[byte_index(byte)] = next;
    }
    node = next;
  }
  nodes_[node].value = value;
  for (size_t second = 0; second < 256; ++second)
    if (text.size() == 1 || second == byte_index(text[1])) pairs_.set(byte_index(text[0]) << 8 | second);
}

TextTrie::Found TextTrie::find(std::string_view text, size_t from, WorkLimit& limit) const {
  limit.check_stop();
  for (size_t begin = from; begin < text.size(); ++begin) {
    uint32_t node = first_[byte_index(text[begin])];
    if (node == 0) continue;
    if (begin + 1 < text.size() && !pairs_.test(byte_index(text[begin]) << 8 | byte_index(text[begin + 1]))) continue;
    Found found{begin, begin, kNone};
    uint64_t steps = 0;
    for (size_t end = begin + 1;; ++end) {
      if (nodes_[node].value != kNone) found = {begin, end, nodes_[node].value};
      if (end == text.size()) break;
      node = child(node, text[end], steps);
      if (node == 0) break;
    }
    limit.charge(steps, "the search for added tokens");
    if (found.value != kNone) return found;
  }
  return {text.size(), text.size(), kNone};
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (uint32_t i = 0; i < tokens_.size(); ++i) (tokens_[i].normalized ? normalized_ : raw_).add(tokens_[i].text, i);
}

AddedTokens::Match AddedTokens::widened(const AddedToken& token, std::string_view text, const TextTrie::Found& found,
                                        size_t done) {
  Match match{found.begin, found.end, true};
  const std::string_view before = text.substr(0, found.begin), after = text.substr(found.end);
  if (token.single_word && (trailing(before, word_set()) > 0 || leading(after, word_set()) > 0)) match.taken = false;
  if (token.lstrip && match.begin > done)
    while (const size_t bytes = trailing(text.substr(done, match.begin - done), whitespace_set())) match.begin -= bytes;
  // The whitespace that the previous token included on its right reaches up to other text.
  if (token.rstrip) match.end = std::max(match.end, done);
  if (token.rstrip)
    while (const size_t bytes = leading(text.substr(match.end), whitespace_set())) match.end += bytes;
  return match;
}

}  // namespace lfm2
