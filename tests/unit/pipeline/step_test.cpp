// Steps as messages, and back.
#include "stage/pipeline/step.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace lfm2::test {
namespace {

// released, dropped, admitted, added, entries and counted, each behind its length, and whether the run ends.
TEST(StepTest, MessagesThatAreNone) {
  const auto read = [](const std::vector<int32_t>& words) { return from_words<Step>(words); };
  EXPECT_THROW(read({}), Error);
  EXPECT_THROW(read({0, 0, 0, 0, 0, 0, 1, 0}), Error);
  EXPECT_THROW(read({0, 0, 0, 0, 0, 0, 0, 0, 5}), Error);
  EXPECT_THROW(read({0, 0, 1, 0, 0, 0, 0, 0}), Error);
  EXPECT_THROW(read({3, 0, 0, 0}), Error);
  EXPECT_THROW(read({-1, 0, 0, 0, 0, 0, 0, 0}), Error);
  EXPECT_EQ(read({0, 0, 0, 0, 0, 0, 0, 0}), Step());
  EXPECT_TRUE(read(to_words(Step{.end = true})).end);
}

TEST(StepTest, AnAdmissionCarriesItsRequest) {
  const Request all{.sample = 70,
                    .choices = 3,
                    .choice = 2,
                    .first = 69,
                    .rng_stream = 4,
                    .tag = 5,
                    .num_top_logprobs = 6,
                    .prompt = {1, 2, 3, 4, 5},
                    .max_new = 30,
                    .rule = {.temperature = 0.7f,
                             .top_k = 40,
                             .top_p = 0.9f,
                             .seed = 0x123456789abcdef0u,
                             .min_p = 0.1f,
                             .repetition_penalty = 1.5f,
                             .presence_penalty = -1,
                             .frequency_penalty = 2,
                             .min_tokens = 4},
                    .eos_tokens = {2, 7},
                    .stop = {"a", "four", std::string("\0\xff\n12", 5)},
                    .logit_bias = {{9, -1.5f}},
                    .prompt_log_probs = true,
                    .hidden = Hidden::kMean,
                    .echo = true,
                    .prefill_only = true,
                    .draft = false};
  const Step step{
      .released = {3},
      .dropped = {8, 9},
      .admitted = {{.slot = 1, .prompt = 5, .num_tokens = 7, .num_cached = 4, .request = all, .pages = {8, 0, 3}},
                   {.slot = 2, .prompt = 1, .num_tokens = 1, .request = {.sample = 71}, .pages = {5}}},
      .added = {{4, 6}, {0, 7}},
      .entries = {{1, 7}, {3, 4, 3, 2}, {2, 1}},
      .drafts = {9, 8, 7},
      .counted = {1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(from_words<Step>(to_words(step)), step);
  std::vector<int32_t> words = to_words(step);
  while (!words.empty()) {
    words.pop_back();
    EXPECT_THROW(from_words<Step>(words), Error);
  }
}

}  // namespace
}  // namespace lfm2::test
