#include "serve/replica_choice.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lfm2::serve {
namespace {

constexpr Capacity kLarge{.sequences = 100, .waiting_tokens = 1 << 20, .kept_pages = 100, .page_size = 4};

Request request_of(std::vector<int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  return request;
}

std::vector<int32_t> tokens(int32_t first, int count) {
  std::vector<int32_t> list(static_cast<size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return list;
}

std::optional<size_t> choose(ReplicaChoice& choice, const Request& request) {
  return choice.choose(choice.pages_of(request));
}

TEST(ReplicaChoiceTest, TheLeastLoadedThenTheOneLeftAloneForLongest) {
  ReplicaChoice choice(3, kLarge);
  const Request request = request_of({1});
  for (const size_t expected : {0u, 1u, 2u, 0u, 1u, 2u}) EXPECT_EQ(choose(choice, request), expected);
  choice.ended(1);
  choice.ended(1);
  for (const size_t expected : {1u, 1u, 0u}) EXPECT_EQ(choose(choice, request), expected);
}

TEST(ReplicaChoiceTest, ThePrefixWinsWithinBounds) {
  ReplicaChoice choice(2, kLarge);
  const std::vector<int32_t> text = tokens(10, 40);
  const auto prefix = [&](int count) { return request_of({text.begin(), text.begin() + count}); };
  EXPECT_EQ(choose(choice, prefix(9)), 0u);              // pages 0 and 1
  EXPECT_EQ(choose(choice, request_of({1, 2, 3})), 1u);  // no page
  EXPECT_EQ(choose(choice, prefix(40)), 0u);             // all pages
  EXPECT_EQ(choose(choice, request_of(tokens(10, 3))), 1u) << "less than a page";
  for (int more = 0; more < 3; ++more) EXPECT_EQ(choose(choice, prefix(20)), 0u);
  // Five and two sequences: one more than four above the least is too many.
  EXPECT_EQ(choose(choice, prefix(20)), 0u);
  EXPECT_EQ(choose(choice, prefix(20)), 0u);
  EXPECT_EQ(choose(choice, prefix(20)), 1u);
  choice.ended(0);
  EXPECT_EQ(choose(choice, prefix(20)), 1u) << "both have it: the load decides";
  EXPECT_EQ(choose(choice, prefix(40)), 0u) << "one of them has more of it";
  Request scored = prefix(40);
  scored.prompt_log_probs = true;
  EXPECT_EQ(choose(choice, scored), 1u) << "it needs all of its positions";
}

TEST(ReplicaChoiceTest, ManyMaySucceedAQuarterMore) {
  ReplicaChoice choice(2, {.sequences = 1000, .waiting_tokens = 1 << 20, .kept_pages = 100, .page_size = 4});
  for (int i = 0; i < 200; ++i) choose(choice, request_of({1}));  // 100 each
  const Request known = request_of(tokens(0, 8));
  EXPECT_EQ(choose(choice, known), 0u);
  int more = 1;
  while (choose(choice, known) == 0u) ++more;
  EXPECT_EQ(more, 26);
}

TEST(ReplicaChoiceTest, WithoutRoomARequestWaits) {
  ReplicaChoice choice(2, {.sequences = 2, .waiting_tokens = 10, .kept_pages = 0, .page_size = 4});
  EXPECT_EQ(choose(choice, request_of(tokens(0, 12))), 0u);  // as long as it likes
  EXPECT_EQ(choose(choice, request_of(tokens(0, 9))), 1u);
  EXPECT_EQ(choose(choice, request_of({1})), 1u) << "the first replica's prompts wait";
  EXPECT_EQ(choose(choice, request_of({1})), std::nullopt);
  choice.begun(0, 12);
  EXPECT_EQ(choose(choice, request_of({1})), 0u);
  EXPECT_EQ(choose(choice, request_of({1})), std::nullopt) << "no free slot";
  choice.begun(1, 9);
  choice.ended(1);
  EXPECT_EQ(choose(choice, request_of({1})), 1u);
  EXPECT_EQ(choose(choice, request_of({1})), std::nullopt);
  ReplicaChoice single(1, {});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(choose(single, request_of(tokens(0, 100))), 0u);
}

TEST(SentPagesTest, TheLastPagesOfTheOldestPromptAreForgottenFirst) {
  SentPages sent(4);
  const std::vector<uint64_t> a{1, 2, 3}, b{1, 20}, c{30, 31};
  sent.add(a);
  EXPECT_EQ(sent.count_known(a), 3);
  EXPECT_EQ(sent.count_known(b), 1);
  sent.add(b);
  EXPECT_EQ(sent.count_known(a), 3);
  EXPECT_EQ(sent.count_known(b), 2);
  sent.add(c);  // 3 and 2 go
  EXPECT_EQ(sent.count_known(a), 1);
  EXPECT_EQ(sent.count_known(b), 2);
  EXPECT_EQ(sent.count_known(c), 2);
  SentPages none(0);
  none.add(a);
  EXPECT_EQ(none.count_known(a), 0);
}

}  // namespace
}  // namespace lfm2::serve
