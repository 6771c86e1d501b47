#include "grammar/matcher/token_trie.h"

#include <algorithm>

namespace lfm2::grammar {
namespace {

size_t common_bytes(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

TokenTrie::TokenTrie(std::vector<Token> tokens) : nodes_() {
  std::erase_if(tokens, [](const Token& token) { return token.first.empty() || token.first.size() > kMaxBytes; });
  std::sort(tokens.begin(), tokens.end());  // char_traits<char> compares as unsigned bytes
  std::vector<uint32_t> path;               // the nodes of the last token's beginnings
  std::string_view last;
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].after = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (const auto& [text, id] : tokens) {
    const size_t common = common_bytes(last, text);
    // A token of the same bytes: its node is the last one.
    if (common == text.size() && text.size() == last.size()) {
      ids_.push_back(id);
      continue;
    }
    close(common);
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {0, static_cast<uint32_t>(ids_.size()), static_cast<uint8_t>(text[i]), static_cast<uint8_t>(i + 1)});
    }
    ids_.push_back(id);
    last = text;
    max_depth_ = std::max(max_depth_, text.size());
  }
  close(0);
  const auto end = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({end, static_cast<uint32_t>(ids_.size()), 0, 0});
  std::fill(first_.begin(), first_.end(), end);
  for (uint32_t node = 0; node < end; node = nodes_[node].after) first_[nodes_[node].byte] = node;
}

}  // namespace lfm2::grammar
