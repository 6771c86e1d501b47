// Drafts from a sequence's own tokens, and how many of them.
#include "stage/generation/ngram_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "stage/generation/scheduler.h"
#include "support/text_numbers.h"

namespace lfm2::test {
namespace {

// The longest suffix that ends earlier, as a search finds it; drafts are what followed there.
TEST(NgramDrafterTest, FindsTheLongestMatch) {
  std::mt19937 random(3);
  for (int text = 0; text < 60; ++text) {
    const auto letters = static_cast<uint32_t>(1 + text % 6);
    NgramDrafter drafter;
    Tokens tokens;
    for (int length = 1; length < 120; ++length) {
      const bool copies = tokens.size() > 20 && random() % 3 == 0;
      tokens.push_back(copies ? tokens[tokens.size() - 17] : static_cast<int32_t>(random() % letters));
      const auto ends_at = [&](size_t end, size_t match) {
        return match <= end && std::equal(tokens.end() - static_cast<std::ptrdiff_t>(match), tokens.end(),
                                          tokens.begin() + static_cast<std::ptrdiff_t>(end - match));
      };
      size_t longest = 0;
      for (size_t end = 0; end < tokens.size(); ++end)
        while (ends_at(end, longest + 1)) ++longest;
      const Tokens drafts = drafter.propose(tokens, 6);
      ASSERT_EQ(drafter.match(), std::ssize(Tokens(longest)));
      EXPECT_EQ(drafter.may_propose(tokens, 1), longest + 1 >= 3);
      if (longest < 3) {
        EXPECT_TRUE(drafts.empty());
        continue;
      }
      bool found = false;
      for (size_t end = longest; end < tokens.size() && !found; ++end) {
        if (!ends_at(end, longest)) continue;
        Tokens follows = tokens;
        for (size_t i = 0; i < 6; ++i) follows.push_back(follows[end + i]);
        found = Tokens(follows.end() - 6, follows.end()) == drafts;
      }
      EXPECT_TRUE(found) << "drafts that followed no such match";
    }
  }
}

}  // namespace
}  // namespace lfm2::test
