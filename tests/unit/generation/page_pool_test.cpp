// The prefix cache's table of pages: what is found is what was kept, whatever the hash does, and no page is lost.
#include "stage/generation/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lfm2::test {
namespace {

using Tokens = std::vector<int32_t>;

uint64_t one_for_all(int64_t, std::span<const int32_t>) { return 7; }
uint64_t first_token(int64_t, std::span<const int32_t> tokens) { return static_cast<uint64_t>(tokens.front()) % 2; }

// A sequence as the scheduler has it: it takes what is kept of its tokens, and computes the rest.
struct Holder {
  Tokens tokens;
  std::vector<int32_t> pages;
  size_t found = 0;
};

Holder begin(PagePool& pool, size_t positions, const Tokens& tokens) {
  Holder holder{.tokens = tokens, .pages = pool.find(tokens), .found = 0};
  holder.found = holder.pages.size();
  KeptPrefix prefix;
  for (const int32_t page : holder.pages) prefix = pool.hold(page);
  for (size_t full = holder.found; full < tokens.size() / positions; ++full) {
    holder.pages.push_back(pool.allocate());
    prefix = pool.keep(holder.pages.back(), prefix, std::span(tokens).subspan(full * positions, positions));
  }
  return holder;
}

TEST(PagePoolTest, FindsWholePagesFromTheBegin) {
  PagePool pool(8, 2, true);
  const Holder first = begin(pool, 2, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(pool.kept(), 3);
  const auto pages_of = [&](const Tokens& tokens) { return pool.find(tokens).size(); };
  EXPECT_EQ(pages_of({1, 2, 3, 4, 5, 6, 7}), 3u);
  EXPECT_EQ(pool.find(Tokens{1, 2, 3, 4}), Tokens(first.pages.begin(), first.pages.begin() + 2));
  EXPECT_EQ(pages_of({1, 2, 3, 4, 5}), 2u);
  EXPECT_EQ(pages_of({1, 2, 3, 5, 5, 6}), 1u);
  EXPECT_EQ(pages_of({3, 4, 5, 6}), 0u);  // the same tokens at another place
  EXPECT_EQ(pages_of({1}), 0u);
  EXPECT_EQ(pages_of({}), 0u);
}

TEST(PagePoolTest, KeepsNothingWhereItShallNot) {
  PagePool pool(4, 2, false);
  const Holder first = begin(pool, 2, {1, 2, 3, 4});
  EXPECT_EQ(pool.kept(), 0);
  EXPECT_TRUE(pool.find(first.tokens).empty());
  pool.release(first.pages);
  EXPECT_EQ(pool.available(), 4);
}

TEST(PagePoolTest, AHashThatIsTheSameForAllMixesNothingUp) {
  PagePool pool(16, 2, true, one_for_all);
  const Holder one = begin(pool, 2, {1, 2, 3, 4}), other = begin(pool, 2, {1, 2, 4, 3}), third = begin(pool, 2, {3, 4});
  EXPECT_EQ(other.found, 1u);
  EXPECT_EQ(third.found, 0u);  // behind no page, and not behind {1, 2}
  EXPECT_EQ(pool.kept(), 4);
  EXPECT_EQ(pool.find(one.tokens), one.pages);
  EXPECT_EQ(pool.find(other.tokens), other.pages);
  EXPECT_EQ(pool.find(third.tokens), third.pages);
  EXPECT_TRUE(pool.find(Tokens{4, 3}).empty());
}

TEST(PagePoolTest, PagesAreHeldUntilTheLastHolderGoes) {
  PagePool pool(4, 1, true);
  const Holder one = begin(pool, 1, {1, 2}), two = begin(pool, 1, {1, 2, 3});
  EXPECT_EQ(two.found, 2u);
  EXPECT_EQ(pool.holders(one.pages[0]), 2);
  EXPECT_EQ(pool.available(), 1);
  pool.release(one.pages);
  EXPECT_EQ(pool.available(), 1);
  pool.release(two.pages);
  EXPECT_EQ(pool.available(), 4);
  EXPECT_EQ(pool.kept(), 3);
  EXPECT_THROW(pool.release(one.pages), Error);
}

TEST(PagePoolTest, TheLongestUnusedGoesFirstAndLaterPagesBeforeEarlierOnes) {
  PagePool pool(6, 1, true);
  const Holder one = begin(pool, 1, {1, 2, 3}), two = begin(pool, 1, {4, 5, 6});
  pool.release(one.pages);
  pool.release(two.pages);
  const Holder again = begin(pool, 1, {1, 2});  // now 3 of the first text is the oldest, then those of the second
  pool.release(again.pages);
  const auto left = [&](const Tokens& tokens) { return pool.find(tokens).size(); };
  std::vector<int32_t> taken;
  for (const auto& [first, second] : {std::pair(2u, 3u), {2u, 2u}, {2u, 1u}, {2u, 0u}, {1u, 0u}, {0u, 0u}}) {
    taken.push_back(pool.allocate());
    EXPECT_EQ(left({1, 2, 3}), first);
    EXPECT_EQ(left({4, 5, 6}), second);
  }
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.kept(), 0);
  EXPECT_THROW(pool.allocate(), Error);
  std::ranges::sort(taken);
  EXPECT_EQ(taken, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
}

// Two sequences compute the same at the same time: one of them has the pages that are found, and the other may outlive
// them.
TEST(PagePoolTest, AChainWhosePagesWereForgottenIsNotContinued) {
  PagePool pool(4, 1, true);
  const std::vector<int32_t> one{pool.allocate()}, two{pool.allocate()};
  const Tokens token{5}, next{6};
  const KeptPrefix kept = pool.keep(one[0], {}, token), same = pool.keep(two[0], {}, token);
  EXPECT_EQ(same.number, kept.number);
  EXPECT_EQ(pool.find(token), one);
  EXPECT_EQ(pool.kept(), 1);
  pool.release(one);
  std::vector<int32_t> others{pool.allocate(), pool.allocate(), pool.allocate()};  // the last one is that of `one`
  EXPECT_EQ(others.back(), one[0]);
  pool.keep(others[2], {}, Tokens{9});
  const KeptPrefix broken = pool.keep(others[0], same, next);
  EXPECT_LT(broken.number, 0);
  EXPECT_LT(pool.keep(others[1], broken, next).number, 0);
  EXPECT_TRUE(pool.find(Tokens{5, 6}).empty());
  EXPECT_EQ(pool.find(Tokens{9, 6}).size(), 1u) << "the page's number alone is no name for its content";
}

TEST(PagePoolTest, RandomSequences) {
  std::mt19937 random(3);
  const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
  for (const PagePool::Hash hash : {PagePool::content_hash, one_for_all, first_token})
    for (const size_t positions : {1, 2, 3}) {
      constexpr int64_t kPages = 40;
      PagePool pool(kPages, static_cast<int64_t>(positions), true, hash);
      std::vector<Holder> running;
      std::map<int32_t, Tokens> content;  // by page: all tokens up to its end
      size_t found = 0;
      for (int round = 0; round < 4000; ++round) {
        if (!running.empty() && (below(2) == 0 || pool.available() < 8)) {
          const auto ends = running.begin() + below(static_cast<int>(running.size()));
          pool.release(ends->pages);
          running.erase(ends);
        } else {
          Tokens tokens(static_cast<size_t>(below(8)) * positions + static_cast<size_t>(below(2)));
          for (int32_t& token : tokens) token = below(2);
          const Holder& holder = running.emplace_back(begin(pool, positions, tokens));
          found += holder.found;
          for (size_t i = 0; i < holder.pages.size(); ++i) {
            const Tokens whole(tokens.begin(), tokens.begin() + static_cast<int64_t>((i + 1) * positions));
            if (i < holder.found)
              ASSERT_EQ(content.at(holder.pages[i]), whole);
            else
              content[holder.pages[i]] = whole;
          }
        }
        std::map<int32_t, int64_t> holders;
        for (const Holder& one : running)
          for (const int32_t page : one.pages) ++holders[page];
        ASSERT_EQ(pool.available(), kPages - static_cast<int64_t>(holders.size()));
        for (int32_t page = 0; page < kPages; ++page) ASSERT_EQ(pool.holders(page), holders[page]);
      }
      EXPECT_GT(found, 1000u);
      for (const Holder& one : running) pool.release(one.pages);
      EXPECT_EQ(pool.available(), kPages);
    }
}

}  // namespace
}  // namespace lfm2::test
