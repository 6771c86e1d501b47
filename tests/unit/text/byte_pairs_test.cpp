// Byte pair encoding against the rule as it is written: look at all pairs, merge the first of the smallest rank.
#include "text/byte_pairs.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "text/piece_encoder.h"

namespace lfm2 {
namespace {

struct MergeCase {
  Vocabulary vocabulary;
  std::vector<Merge> merges;
};

// All bytes and tokens of a few letters, with random merges in a random order: tokens are made in several ways, also by
// merges that come before those that make their parts.
MergeCase random_case(std::mt19937& random) {
  MergeCase result;
  TokenId next = 0;
  for (int byte = 0; byte < 256; ++byte)
    result.vocabulary.add(next++, byte_level_character(static_cast<uint8_t>(byte)), Vocabulary::Kind::kModel, "test");
  std::vector<std::string> texts = {"a", "b", "c"};
  const size_t count = 5 + random() % 40;
  while (result.merges.size() < count) {
    const std::string left = texts[random() % texts.size()], right = texts[random() % texts.size()];
    if (left.size() + right.size() > 12) continue;
    if (!result.vocabulary.find(left + right)) {
      texts.push_back(left + right);
      result.vocabulary.add(next++, left + right, Vocabulary::Kind::kModel, "test");
    }
    result.merges.push_back({*result.vocabulary.find(left), *result.vocabulary.find(right), next - 1});
    result.merges.back().merged = *result.vocabulary.find(left + right);
  }
  if (random() % 2 == 0) std::shuffle(result.merges.begin(), result.merges.end(), random);
  return result;
}

std::vector<TokenId> by_the_rule(const MergeCase& one, std::string_view text) {
  std::map<std::pair<TokenId, TokenId>, Rank> ranks;
  for (Rank rank = 0; rank < one.merges.size(); ++rank)
    ranks[{one.merges[rank].left, one.merges[rank].right}] = rank;  // the last one holds
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(*one.vocabulary.find(byte_level_character(static_cast<uint8_t>(c))));
  for (;;) {
    Rank best = kNoRank;
    size_t place = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        place = i;
      }
    }
    if (best == kNoRank) return tokens;
    tokens[place] = one.merges[best].merged;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

std::string random_text(std::mt19937& random, size_t size) {
  std::string text;
  const auto letters = 1 + random() % 4;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % letters);
  return text;
}

TEST(BytePairsTest, ShortAndLongPiecesFollowTheRule) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const MergeCase one = random_case(random);
    const BytePairs pairs(one.vocabulary, one.merges);
    BytePairs::Scratch scratch;
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{40}, size_t{256}, size_t{257}, size_t{600}}) {
      const std::string text = random_text(random, size);
      std::vector<TokenId> ids;
      pairs.encode(text, scratch, ids);
      ASSERT_EQ(ids, by_the_rule(one, text)) << "round " << round << ": " << text;
    }
  }
}

TEST(BytePairsTest, LookUpsGiveWhatMergingGives) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const MergeCase one = random_case(random);
    const PieceEncoder encoder(one.vocabulary, one.merges, false);
    PieceEncoder::Scratch scratch;
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random, 1 + random() % 30);
      const std::vector<TokenId> expected = by_the_rule(one, text);
      for (int time = 0; time < 2; ++time) {  // the second time from what was met lately
        std::vector<TokenId> ids;
        encoder.encode(text, scratch, ids);
        ASSERT_EQ(ids, expected) << "round " << round << ": " << text;
      }
    }
  }
}

TEST(BytePairsTest, PairsWaitByRankThenByPosition) {
  std::mt19937 random(3);
  PairQueue queue(20);
  for (int round = 0; round < 50; ++round) {
    std::multimap<std::pair<Rank, uint32_t>, int> expected;
    const auto push = [&] {
      const auto rank = static_cast<Rank>(random() % 20);
      const auto position = static_cast<uint32_t>(random() % 1000);
      queue.push(rank, position);
      expected.emplace(std::pair(rank, position), 0);
    };
    for (int i = 0; i < 100; ++i) push();
    Rank rank = 0;
    uint32_t position = 0;
    while (queue.pop(rank, position)) {
      ASSERT_EQ(std::pair(rank, position), expected.begin()->first);
      expected.erase(expected.begin());
      if (random() % 3 == 0) push();
    }
    EXPECT_TRUE(expected.empty());
  }
}

}  // namespace
}  // namespace lfm2
