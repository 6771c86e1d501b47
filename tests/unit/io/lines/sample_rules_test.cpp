// The rules of a job's samples, kept once where they are equal.
#include "stage/io/lines/sample_rules.h"

#include <gtest/gtest.h>

#include "stage/io/lines/answer_form.h"

namespace lfm2::test {
namespace {

void expect_kept(const std::vector<SampleRules>& all, size_t distinct, bool seeds) {
  RuleTable table;
  for (const SampleRules& rules : all) table.push_back(rules);
  ASSERT_FALSE(table.empty());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(table[static_cast<int64_t>(i)], all[i]) << i;
  EXPECT_EQ(table.distinct().size(), distinct);
  EXPECT_EQ(table.have_seeds(), seeds);
}

TEST(RuleTableTest, GivesEachItsOwn) {
  const SampleRules plain, text{.form = LineForm::kText}, hot{.form = LineForm::kText, .temperature = 2.0f},
      seeded{.form = LineForm::kText, .seed = 5}, other{.form = LineForm::kText, .seed = 6}, zero{.seed = 0};
  expect_kept({plain, plain, plain}, 1, false);
  expect_kept({text, text, hot, text, plain}, 3, false);
  expect_kept({seeded, other, seeded}, 1, true);
  expect_kept({text, text, seeded, text}, 1, true);
  expect_kept({plain, text, other, zero, plain, hot}, 3, true);
}

TEST(RuleTableTest, EveryFieldCounts) {
  const std::vector<SampleRules> all{{},
                                     {.form = LineForm::kChatCompletion},
                                     {.ignore_eos = true},
                                     {.max_new = 1},
                                     {.temperature = 0.0f},
                                     {.top_p = 0.0f},
                                     {.top_k = 0},
                                     {.log_probs = 0},
                                     {.stop_token_ids = {0}},
                                     {.stop_token_ids = {1}},
                                     {.stop_token_ids = {0, 1}}};
  expect_kept(all, all.size(), false);
}

TEST(RuleTableTest, WithoutRules) {
  const RuleTable table;
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table[12345], SampleRules{});
}

TEST(AnswerFormTest, GoesThroughAWord) {
  for (const LineForm form : {LineForm::kIds, LineForm::kText, LineForm::kPrompt, LineForm::kMessages,
                              LineForm::kCompletion, LineForm::kChatCompletion})
    for (const std::optional<int32_t> log_probs : {std::optional<int32_t>(), {0}, {1}, {1024}, {1 << 20}}) {
      const AnswerForm back = AnswerForm::from_word(AnswerForm{form, log_probs}.to_word());
      EXPECT_EQ(back.form, form);
      EXPECT_EQ(back.log_probs, log_probs);
    }
}

}  // namespace
}  // namespace lfm2::test
