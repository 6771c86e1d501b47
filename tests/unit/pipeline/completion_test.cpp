// What a completion holds: the text up to a stop text, and all choices of one prompt.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/words.h"
#include "stage/io/sample_requests.h"
#include "stage/shards/shard_reader.h"
#include "support/generation_run.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

// Texts end before a stop text, and with the token that completes it: no token comes behind. In each sequence by
// itself, whatever goes on beside it.
TEST(CompletionTest, StopTextsEndSequences) {
  const Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  std::vector<std::string> texts;
  for (int id = 0; id < 4096; ++id) texts.push_back("<" + std::to_string(id) + ">");
  const auto text_of = [&](int32_t token) -> std::string_view { return texts.at(static_cast<size_t>(token)); };
  GenerationSettings settings{
      .slots = 9, .max_new = 20, .rule = {.temperature = 1.5f, .seed = 5}, .stop = {}, .token_text = text_of};
  const auto free = generate("tiny-moe", prompts, settings);
  const auto text = [&](int64_t sample, size_t place) {
    return std::string(text_of(free.at(sample).token_ids[place]));
  };
  // Across two tokens of sample 3, inside a token of sample 5, a whole token of sample 8, and what no text has.
  settings.stop = {text(3, 6).substr(text(3, 6).size() - 2) + text(3, 7).substr(0, 3), text(5, 2).substr(1, 2),
                   text(8, 11), "<<"};
  // By the definition, token by token: the first stop text that ends in the newest one.
  const auto expected = [&](std::vector<int32_t> tokens) {
    std::string all;
    for (size_t length = 1; length <= tokens.size(); ++length) {
      const size_t before = all.size();
      all += text_of(tokens[length - 1]);
      if (static_cast<int32_t>(length) <= settings.rule.min_tokens) continue;
      size_t first = std::string::npos;
      for (const std::string& stop : settings.stop)
        for (size_t at = all.find(stop); at != std::string::npos; at = all.find(stop, at + 1))
          if (at + stop.size() > before) first = std::min(first, at);
      if (first == std::string::npos) continue;
      tokens.resize(length);
      return std::pair(tokens, std::optional(static_cast<int64_t>(first)));
    }
    return std::pair(tokens, std::optional<int64_t>());
  };
  for (const int64_t stages : {1, 3})
    for (const int64_t pages : {0, 18})
      for (const int32_t min_tokens : {0, 5}) {
        settings.stages = stages;
        settings.page_size = 4;
        settings.pages = pages;
        settings.rule.min_tokens = min_tokens;
        int64_t stopped = 0;
        for (const auto& [sample, own] : generate("tiny-moe", prompts, settings)) {
          SCOPED_TRACE(testing::Message() << "sample " << sample << ", " << stages << " stages, " << pages << " pages");
          const auto [tokens, text_bytes] = expected(free.at(sample).token_ids);
          EXPECT_EQ(own.token_ids, tokens);
          EXPECT_EQ(own.text_bytes, text_bytes);
          EXPECT_EQ(own.reason, text_bytes ? FinishReason::kStop : FinishReason::kLength);
          stopped += text_bytes ? 1 : 0;
        }
        EXPECT_GE(stopped, min_tokens == 0 ? 3 : 2);
      }
}

// Several draws from one prompt: one completion, whose choices are those of their seeds alone.
TEST(CompletionTest, ChoicesAreOneCompletion) {
  const int64_t vocab = ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab;
  Samples prompts = ragged_prompts(vocab);
  for (int64_t sample = 0; sample < prompts.count(); ++sample)
    prompts.rules.push_back({.form = LineForm::kPrompt, .choices = static_cast<int32_t>(1 + sample % 4)});
  GenerationSettings settings{.slots = 9,
                              .page_size = 4,
                              .max_new = 20,
                              .rule = {.temperature = 1.5f, .seed = 5, .frequency_penalty = 0.5f},
                              .eos_tokens = {3, 9, 17}};
  std::vector<std::map<int64_t, Completion>> alone;  // by choice
  for (int32_t choice = 0; choice < 4; ++choice) {
    Samples single = ragged_prompts(vocab);
    for (int64_t sample = 0; sample < single.count(); ++sample)
      single.rules.push_back({.form = LineForm::kPrompt, .sampling = {.seed = seed_of_choice(5, choice)}});
    alone.push_back(generate("tiny-moe", single, settings));
  }
  for (const int64_t stages : {1, 3})
    for (const int64_t pages : {0, 18}) {
      settings.stages = stages;
      settings.pages = pages;
      for (const auto& [sample, completion] : generate("tiny-moe", prompts, settings)) {
        std::vector<Completion> choices = completion.others;
        choices.insert(choices.begin(), completion);
        ASSERT_EQ(static_cast<int64_t>(choices.size()), 1 + sample % 4);
        for (size_t choice = 0; choice < choices.size(); ++choice) {
          EXPECT_EQ(choices[choice].sample, sample);
          EXPECT_EQ(choices[choice].choice, static_cast<int32_t>(choice));
          EXPECT_EQ(choices[choice].token_ids, alone[choice].at(sample).token_ids) << sample << ", " << choice;
          EXPECT_EQ(choices[choice].log_probs, alone[choice].at(sample).log_probs);
        }
      }
    }
  EXPECT_NE(alone[0].at(3).token_ids, alone[1].at(3).token_ids);
}

TEST(CompletionTest, GoesIntoAMessageAndComesBack) {
  const Completion other{.sample = 7,
                         .choice = 1,
                         .tag = 5,
                         .reason = FinishReason::kStop,
                         .token_ids = {9, 8, 7},
                         .text_bytes = 0,
                         .log_probs = {-0.5f, -1.25f, 0},
                         .top_ids = {1, 2, 3},
                         .top_log_probs = {-1, -2, -3}};
  Completion one{.sample = int64_t{1} << 40,
                 .prompt_tokens = 3,
                 .token_ids = {1},
                 .log_probs = {},
                 .top_ids = {},
                 .top_log_probs = {}};
  one.prompt_ids = {4, 5, 6};
  one.prompt = {.log_probs = {-1, -2}, .top_ids = {3, 4}, .top_log_probs = {-7, -8}};
  one.others = {other, other};
  Completion failed{.sample = 3, .token_ids = {}, .log_probs = {}, .top_ids = {}, .top_log_probs = {}};
  failed.error = "no prompt";
  const std::vector<Completion> sent{one, failed, other};
  std::vector<int32_t> words;
  for (const Completion& completion : sent) WordWriter(words).add(completion);
  const auto read = [&words] {
    std::vector<Completion> came;
    for (WordReader reader(words); !reader.at_end();) reader.read(came.emplace_back());
    return came;
  };
  EXPECT_TRUE(read() == sent);
  words.pop_back();
  EXPECT_THROW(read(), std::exception);
}

}  // namespace
}  // namespace lfm2::test
