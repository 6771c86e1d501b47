// Which rows of results are not finite, and what is said of them.
#include "base/not_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/json/json.h"
#include "stage/io/results.h"
#include "stage/pipeline/completion.h"

namespace lfm2 {
namespace {

TEST(NotFiniteTest, RowsFromWhichNoTokenCanBeDrawn) {
  constexpr float kNan = NAN, kInf = HUGE_VALF;
  const auto found = [](std::vector<float> values, bool states) {
    return is_not_finite({.count = 1, .logits = values}, states);
  };
  for (const bool states : {false, true}) {
    EXPECT_FALSE(found({1, -3e38f, 0, 5e-45f, 3.4e38f}, states));
    for (const float bad : {kNan, -kNan, kInf})
      for (size_t place = 0; place < 37; ++place) {
        std::vector<float> values(37, 1.5f);
        values[place] = bad;
        EXPECT_TRUE(found(values, states)) << bad << " at " << place;
      }
    EXPECT_TRUE(found({-kInf, -kInf}, states));
    EXPECT_EQ(found({-kInf, 1, -kInf}, states), states);  // of logits, tokens that are never drawn
  }
}

TEST(NotFiniteTest, RowsOfLogProbabilities) {
  const auto found = [](std::vector<float> values, std::vector<int32_t> is_greedy) {
    return is_not_finite({.count = 1, .is_greedy = is_greedy, .log_probs = values}, false);
  };
  EXPECT_FALSE(found({-1, -2}, {}));
  EXPECT_FALSE(found({-1, -HUGE_VALF}, {}));
  EXPECT_TRUE(found({NAN, NAN}, {}));
  EXPECT_FALSE(found({-1}, {1}));
  EXPECT_TRUE(found({-HUGE_VALF}, {0}));  // a score that no sum holds
  EXPECT_TRUE(found({NAN}, {1}));
}

TEST(NotFiniteTest, CountsAndKeepsTheFirst) {
  NotFiniteRows rows(false);
  EXPECT_EQ(rows.count(), 0);
  const std::vector<float> bad{NAN, 1}, good{2, 1};
  for (const int64_t row : {9, 4, 7}) rows.consume_row({.first = row, .count = 1, .logits = bad});
  rows.consume_row({.first = 1, .count = 1, .logits = good});
  EXPECT_EQ(rows.count(), 3);
  EXPECT_EQ(rows.first_row(), 4);

  NotFinite all;
  for (const NotFinite& part : {NotFinite{}, NotFinite{2, 8}, NotFinite{}, NotFinite{1, 3}}) {
    const NotFinite sent = from_words<NotFinite>(to_words(part));
    EXPECT_EQ(sent, part);
    all.add(sent);
  }
  EXPECT_EQ(all, (NotFinite{3, 3}));
  EXPECT_EQ(not_finite_text(all), "3 results are not finite (NaN or infinity), the first of sample 3");
  EXPECT_EQ(not_finite_text({1, 0}), "1 result is not finite (NaN or infinity), the first of sample 0");
}

TEST(NotFiniteTest, ChoicesThatEndWithAnError) {
  CompletionHash hash;
  Completion completion;
  completion.sample = 5;
  hash.consume(completion);
  completion.error = "refused";  // was never begun
  hash.consume(completion);
  EXPECT_EQ(hash.not_finite(), NotFinite());
  completion.others.resize(2);
  completion.others[1].reason = FinishReason::kError;
  hash.consume(completion);
  completion.sample = 2;
  completion.reason = FinishReason::kError;
  hash.consume(completion);
  EXPECT_EQ(hash.not_finite(), (NotFinite{3, 2}));
}

}  // namespace
}  // namespace lfm2
