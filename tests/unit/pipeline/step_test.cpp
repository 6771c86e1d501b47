// Steps as messages, and back.
#include "stage/pipeline/step.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/error.h"

namespace lfm2::test {
namespace {

TEST(StepTest, MessagesThatAreNone) {
  EXPECT_THROW(step_from_words({}), Error);
  EXPECT_THROW(step_from_words({0, 0, 0, 1, 0, 0, 0, 5}), Error);
  EXPECT_THROW(step_from_words({0, 0, 1, 0, 0, 0, 0, 5}), Error);
  EXPECT_THROW(step_from_words({0, 0, 0, 0, 0, 0, 0, 5}), Error);
  EXPECT_THROW(step_from_words({0, 0, 0, 0, 3, 0}), Error);
  EXPECT_THROW(step_from_words({0, 0, 0, 0, -1, 0}), Error);
  const Step nothing = step_from_words({0, 0, 0, 0, 0, 0, 0});
  EXPECT_FALSE(nothing.end);
  EXPECT_TRUE(nothing.entries.empty());
  EXPECT_TRUE(step_from_words(to_words({.end = true})).end);
}

TEST(StepTest, AnAdmissionCarriesItsRule) {
  const Step step{.released = {3},
                  .dropped = {8, 9},
                  .admitted = {{.slot = 1,
                                .sample = 70,
                                .prompt = 5,
                                .known = 7,
                                .cached = 4,
                                .max_new = 30,
                                .choices = 3,
                                .choice = 2,
                                .first = 69,
                                .rule = {.temperature = 0.7f,
                                         .top_k = 40,
                                         .top_p = 0.9f,
                                         .seed = 0x123456789abcdef0u,
                                         .min_p = 0.1f,
                                         .repetition_penalty = 1.5f,
                                         .presence_penalty = -1,
                                         .frequency_penalty = 2,
                                         .biases = 1,
                                         .banned = 2,
                                         .min_tokens = 4},
                                .eos_tokens = {2, 7},
                                .stop = {"a", "four", std::string("\0\xff\n12", 5)},
                                .edits = {{9, -1.5f}, {2, 0}, {7, 0}},
                                .prompt_log_probs = true,
                                .prompt_alone = true,
                                .hidden = Hidden::kMean,
                                .prompt_ids = {1, 2, 3, 4, 5},
                                .pages = {8, 0, 3}},
                               {.slot = 2, .sample = 71, .prompt = 1, .known = 1, .max_new = 1, .pages = {5}}},
                  .added = {{4, 6}, {0, 7}},
                  .entries = {{1, 7}, {2, 1}},
                  .counted = {1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(step_from_words(to_words(step)), step);
  std::vector<int32_t> words = to_words(step);
  while (!words.empty()) {
    words.pop_back();
    EXPECT_THROW(step_from_words(words), Error);
  }
}

}  // namespace
}  // namespace lfm2::test
