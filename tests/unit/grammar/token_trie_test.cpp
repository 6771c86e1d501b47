#include "grammar/matcher/token_trie.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace lfm2::grammar {
namespace {

// The tokens of a trie, read as a walk reads them.
std::map<std::string, std::set<TokenId>> walk(const TokenTrie& trie) {
  std::map<std::string, std::set<TokenId>> found;
  std::string path;
  for (size_t node = 0; node + 1 < trie.nodes().size(); ++node) {
    path.resize(trie.nodes()[node].depth - 1u);
    path += static_cast<char>(trie.nodes()[node].byte);
    for (const TokenId id : trie.ids(node)) found[path].insert(id);
  }
  return found;
}

TEST(TokenTrie, HasEachTokenUnderItsBytes) {
  const TokenTrie trie({{"b", 0}, {"abc", 1}, {"a", 2}, {"ac", 3}, {"\xff", 4}, {"a", 5}, {"", 6}});
  const std::map<std::string, std::set<TokenId>> expected = {
      {"a", {2, 5}}, {"abc", {1}}, {"ac", {3}}, {"b", {0}}, {"\xff", {4}}};
  EXPECT_EQ(walk(trie), expected);
  EXPECT_EQ(trie.max_depth(), 3u);
}

TEST(TokenTrie, SkipsWhatBeginsWithANode) {
  const TokenTrie trie({{"a", 0}, {"ab", 1}, {"abc", 2}, {"ac", 3}, {"b", 4}});
  const std::vector<uint32_t> expected = {4, 3, 3, 4, 5, 5};
  std::vector<uint32_t> after;
  for (const TokenTrie::Node& node : trie.nodes()) after.push_back(node.after);
  EXPECT_EQ(after, expected);
}

TEST(TokenTrie, FindsFirstBytes) {
  const TokenTrie trie({{"a", 0}, {"ab", 1}, {"\xff", 2}});
  EXPECT_EQ(trie.first('a'), 0u);
  EXPECT_EQ(trie.first(0xff), 2u);
  EXPECT_EQ(trie.first('b'), 3u);  // the sentinel
  EXPECT_EQ(TokenTrie().first('a'), 0u);
}

TEST(TokenTrie, LeavesOutTokensThatAreTooLong) {
  const std::string longest(TokenTrie::kMaxBytes, 'x'), longer(TokenTrie::kMaxBytes + 1, 'x');
  EXPECT_EQ(walk(TokenTrie({{longest, 0}, {longer, 1}})).size(), 1u);
}

}  // namespace
}  // namespace lfm2::grammar
