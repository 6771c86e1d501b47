// The requests of a job: what a line says goes before the options, and a sample draws by its seed alone.
#include "stage/io/sample_requests.h"

#include <gtest/gtest.h>

#include <set>

#include "openai/sample_rules.h"

namespace lfm2::test {
namespace {

RequestDefaults some_defaults() {
  return {
      .of_ids = {.max_new = 10, .rule = {.temperature = 0, .top_k = 1, .top_p = 0.5f, .seed = 3}, .eos_tokens = {2}},
      .of_text = {.max_new = 20, .rule = {.temperature = 1, .top_k = 4, .top_p = 0.75f, .seed = 3}, .eos_tokens = {7}},
      .log_probs = 5};
}

TEST(SampleRequestsTest, DefaultsByForm) {
  const RequestDefaults defaults = some_defaults();
  for (const LineForm form : {LineForm::kIds, LineForm::kText, LineForm::kPrompt, LineForm::kMessages,
                              LineForm::kCompletion, LineForm::kChatCompletion}) {
    const bool of_ids = form == LineForm::kIds || form == LineForm::kText;
    const Request& expected = of_ids ? defaults.of_ids : defaults.of_text;
    const Request request = request_by_rules(defaults, {.form = form}, 6);
    EXPECT_EQ(request.sample, 6);
    EXPECT_EQ(request.max_new, expected.max_new);
    EXPECT_EQ(request.rule.temperature, expected.rule.temperature);
    EXPECT_EQ(request.rule.top_k, expected.rule.top_k);
    EXPECT_EQ(request.rule.top_p, expected.rule.top_p);
    EXPECT_EQ(request.rule.seed, 3u);
    EXPECT_EQ(request.eos_tokens, expected.eos_tokens);
    const ResponseForm answer = ResponseForm::from_word(request.tag);
    EXPECT_EQ(answer.form, form);
    // A batch line has the log-probabilities that it asks for, whatever --top-logprobs says.
    EXPECT_EQ(answer.log_probs, is_batch_form(form) ? std::nullopt : std::optional<int32_t>(5));
  }
}

TEST(SampleRequestsTest, FieldsGoBeforeDefaults) {
  const Request request = request_by_rules(some_defaults(),
                                           {.form = LineForm::kChatCompletion,
                                            .sampling = {.temperature = 0.0f,
                                                         .top_p = 0.0f,
                                                         .min_p = 0.5f,
                                                         .repetition_penalty = 1.5f,
                                                         .presence_penalty = 0.25f,
                                                         .frequency_penalty = 0.75f,
                                                         .top_k = 0,
                                                         .min_tokens = 2,
                                                         .seed = 0,
                                                         .max_new = 1},
                                            .log_probs = 0,
                                            .stop_token_ids = {9, 8},
                                            .logit_bias = {{4, -1.0f}}},
                                           6);
  EXPECT_EQ(request.max_new, 1);
  EXPECT_EQ(request.rule.temperature, 0);
  EXPECT_EQ(request.rule.top_p, 0);
  EXPECT_EQ(request.rule.min_p, 0.5f);
  EXPECT_EQ(request.rule.repetition_penalty, 1.5f);
  EXPECT_EQ(request.rule.presence_penalty, 0.25f);
  EXPECT_EQ(request.rule.frequency_penalty, 0.75f);
  EXPECT_EQ(request.rule.min_tokens, 2);
  EXPECT_EQ(edits_of(request), (std::vector<LogitEdit>{{4, -1.0f}, {7, 0}, {9, 0}, {8, 0}}));  // biases, then ends
  EXPECT_EQ(request.rule.top_k, 0);
  EXPECT_EQ(request.rule.seed, 0u);
  EXPECT_EQ(ResponseForm::from_word(request.tag).log_probs, 0);
  EXPECT_EQ(request.eos_tokens, (std::vector<int32_t>{7, 9, 8}));
  // Without the model's ends, those of the line stay.
  EXPECT_EQ(request_by_rules(some_defaults(), {.ignore_eos = true, .stop_token_ids = {9}}, 0).eos_tokens,
            (std::vector<int32_t>{9}));
}

TEST(SampleRequestsTest, OnlyIdsDrawByTheirNumber) {
  const RequestDefaults defaults = some_defaults();
  EXPECT_EQ(request_by_rules(defaults, {}, 6).rng_stream, 6);
  EXPECT_EQ(request_by_rules(defaults, {.sampling = {.seed = 9}}, 6).rng_stream, 0);
  for (const LineForm form :
       {LineForm::kText, LineForm::kPrompt, LineForm::kMessages, LineForm::kCompletion, LineForm::kChatCompletion})
    EXPECT_EQ(request_by_rules(defaults, {.form = form}, 6).rng_stream, 0);
}

// Samples that were refused have no ids. They are left out, wherever they stand.
TEST(SampleRequestsTest, LeavesOutWhatHasNoIds) {
  Samples samples{.ids = {1, 2, 3, 4}, .offsets = {0, 0, 2, 2, 2, 3, 4, 4}};
  for (int64_t i = 0; i < samples.count(); ++i)
    samples.rules.push_back({.form = LineForm::kPrompt, .sampling = {.max_new = i + 1}});
  SampleRequests requests(samples, {0, 7}, some_defaults(), 5);
  EXPECT_EQ(requests.waiting(), 3);
  for (const auto& [sample, prompt, max_new] :
       {std::tuple{1, std::vector<int32_t>{1, 2}, 2}, {4, {3}, 4}, {5, {4}, 4}}) {  // the last lowered to 5 - 1
    EXPECT_FALSE(requests.ended());
    const std::optional<Request> request = requests.next();
    ASSERT_TRUE(request);
    EXPECT_EQ(request->sample, sample);
    EXPECT_EQ(request->prompt, prompt);
    EXPECT_EQ(request->max_new, max_new);
  }
  EXPECT_TRUE(requests.ended());
  EXPECT_FALSE(requests.next());
  SampleRequests part(samples, {2, 3}, some_defaults(), 5);
  EXPECT_EQ(part.waiting(), 1);
  EXPECT_EQ(part.next()->sample, 4);
  SampleRequests none(samples, {2, 2}, some_defaults(), 5);
  EXPECT_TRUE(none.ended());
  EXPECT_FALSE(none.next());
}

// A sample with several choices is given as often, each with a seed and a number of its own.
TEST(SampleRequestsTest, Choices) {
  Samples samples{.ids = {1, 2, 3}, .offsets = {0, 1, 1, 2, 3}};
  for (const int32_t choices : {1, 5, 3, 1}) samples.rules.push_back({.choices = choices, .sampling = {.seed = 8}});
  SampleRequests requests(samples, {0, 4}, some_defaults(), 100);
  EXPECT_EQ(requests.waiting(), 1 + 3 + 1);  // the second is empty
  std::vector<Request> given;
  while (std::optional<Request> request = requests.next()) given.push_back(std::move(*request));
  EXPECT_TRUE(requests.ended());
  ASSERT_EQ(given.size(), 5u);
  std::set<int32_t> numbers;
  std::set<uint64_t> seeds;
  for (const Request& request : given) EXPECT_TRUE(numbers.insert(request.sample).second);
  EXPECT_EQ(given[0].sample, 0);
  EXPECT_EQ(given[0].choices, 1);
  EXPECT_EQ(given[1].sample, 2);
  EXPECT_EQ(given[1].rule.seed, 8u);  // the first choice is the completion without choices
  EXPECT_EQ(given[4].sample, 3);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(given[i].prompt, (std::vector<int32_t>{2}));
    EXPECT_EQ(given[i].choices, 3);
    EXPECT_EQ(given[i].choice, static_cast<int32_t>(i) - 1);
    EXPECT_EQ(given[i].rule.seed, seed_of_choice(8, given[i].choice));
    EXPECT_TRUE(seeds.insert(given[i].rule.seed).second);
    if (i > 1) {
      EXPECT_EQ(given[i].first, 2);
    }
  }
}

}  // namespace
}  // namespace lfm2::test
