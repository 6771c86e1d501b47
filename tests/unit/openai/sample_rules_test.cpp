// The rules of a job's samples, kept once where they are equal.
#include "openai/sample_rules.h"

#include <gtest/gtest.h>

namespace lfm2::test {
namespace {

void expect_kept(const std::vector<SampleRules>& all, size_t distinct) {
  RuleTable table;
  for (const SampleRules& rules : all) table.push_back(rules);
  ASSERT_FALSE(table.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(table[static_cast<int64_t>(i)], all[i]) << i;
    EXPECT_EQ(table.choices(static_cast<int64_t>(i)), all[i].choices) << i;
  }
  EXPECT_EQ(table.distinct().size(), distinct);
}

TEST(RuleTableTest, GivesEachItsOwn) {
  const SampleRules plain, text{.form = LineForm::kText},
      hot{.form = LineForm::kText, .sampling = {.temperature = 2.0f}},
      seeded{.form = LineForm::kText, .sampling = {.seed = 5}}, other{.form = LineForm::kText, .sampling = {.seed = 6}},
      zero{.sampling = {.seed = 0}};
  expect_kept({plain, plain, plain}, 1);
  expect_kept({text, text, hot, text, plain}, 3);
  expect_kept({seeded, other, seeded}, 1);
  expect_kept({text, text, seeded, text}, 1);
  expect_kept({plain, text, other, zero, plain, hot}, 3);
}

TEST(RuleTableTest, EveryFieldCounts) {
  const std::vector<SampleRules> all{{},
                                     {.form = LineForm::kChatCompletion},
                                     {.ignore_eos = true},
                                     {.echo = true},
                                     {.choices = 2},
                                     {.sampling = {.max_new = 1}},
                                     {.sampling = {.temperature = 0.0f}},
                                     {.sampling = {.top_p = 0.0f}},
                                     {.sampling = {.min_p = 0.0f}},
                                     {.sampling = {.repetition_penalty = 1.0f}},
                                     {.sampling = {.presence_penalty = 0.0f}},
                                     {.sampling = {.frequency_penalty = 0.0f}},
                                     {.sampling = {.top_k = 0}},
                                     {.sampling = {.min_tokens = 0}},
                                     {.sampling = {.eos_tokens = {7}}},
                                     {.log_probs = 0},
                                     {.stop_token_ids = {0}},
                                     {.stop_token_ids = {1}},
                                     {.stop_token_ids = {0, 1}},
                                     {.sampling = {.stop = {""}}},
                                     {.sampling = {.stop = {"a", "b"}}},
                                     {.logit_bias = {{1, -0.5f}}},
                                     {.logit_bias = {{1, -0.5f}, {2, 3.0f}}},
                                     {.message = {.thoughts = Thoughts::kApart}},
                                     {.message = {.in_thought = true}},
                                     {.message = {.calls = true}},
                                     {.message = {.one_call = true}}};
  expect_kept(all, all.size());
}

TEST(RuleTableTest, WithoutRules) {
  const RuleTable table;
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table[12345], SampleRules{});
}

TEST(ResponseFormTest, GoesThroughAWord) {
  for (const LineForm form : {LineForm::kIds, LineForm::kText, LineForm::kPrompt, LineForm::kMessages,
                              LineForm::kCompletion, LineForm::kChatCompletion})
    for (const std::optional<int32_t> log_probs : {std::optional<int32_t>(), {0}, {1}, {1024}, {1 << 20}}) {
      const ResponseForm back = ResponseForm::from_word(ResponseForm{form, log_probs}.to_word());
      EXPECT_EQ(back.form, form);
      EXPECT_EQ(back.log_probs, log_probs);
      for (int32_t word = 0; word < 32; ++word) {
        const ResponseForm with{form, log_probs, word % 2 == 1, MessageForm::from_word(word)};
        const ResponseForm all = ResponseForm::from_word(with.to_word());
        EXPECT_EQ(all.message.to_word(), word);
        EXPECT_EQ(all.message, with.message);
        EXPECT_EQ(all.form, form);
        EXPECT_EQ(all.log_probs, log_probs);
        EXPECT_EQ(all.echo, with.echo);
      }
    }
}

}  // namespace
}  // namespace lfm2::test
