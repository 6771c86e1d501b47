// A constrained text that passes a limit of its grammar ends alone, with an error, and the texts beside it continue.
#include "stage/generation/open_completions.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "unit/text/small_tokenizer.h"

namespace lfm2::test {
namespace {

constexpr int64_t kSmallVocab = 4096;
constexpr int32_t kHostile = 0, kHarmless = 1;
// After n letters each of them may have opened a bracket, so that the places of the text grow with its length.
constexpr const char* kManyPlaces =
    R"({"grammar": "root ::= \"a\" root \")\" | other\nother ::= \"a\" root | \"b\"\n"})";

class Ended : public CompletionConsumer {
 public:
  void consume(const Completion& completion) override { completions.push_back(completion); }
  std::vector<Completion> completions;
};

Step admit_both(int32_t max_new) {
  Step step;
  for (const int32_t sample : {kHostile, kHarmless}) {
    Admission& one = step.admitted.emplace_back();
    one.prompt = one.num_tokens = 1;
    one.request.sample = sample;
    one.request.prompt = {1};
    one.request.max_new = max_new;
    one.request.constraint = sample == kHostile ? kManyPlaces : R"({"regex": "a*"})";
  }
  return step;
}

// Also where each step has a block of drafts.
class TextBeyondALimitTest : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Drafts, TextBeyondALimitTest, testing::Values(0, 3));

TEST_P(TextBeyondALimitTest, EndsAlone) {
  const size_t rows = 1 + GetParam();
  const int32_t letter = encode(small_tokenizer(), "a").at(0);
  grammar::ConstraintCache constraints(small_tokenizer(), kSmallVocab);
  Ended ended;
  OpenCompletions open({&ended}, {}, false, &constraints);
  constexpr int32_t kMaxNew = 9000;
  open.apply(admit_both(kMaxNew));
  std::vector<std::byte> memory(4096);
  StepResults results(memory.data(), {.draws = static_cast<int64_t>(2 * rows)});
  StepSamples samples{.drawn = {}, .scored = {}, .hidden = {}};
  for (size_t row = 0; row < 2 * rows; ++row) {
    results.drawn.ids.as<int32_t>()[row] = letter;
    results.drawn.log_probs.as<float>()[row] = -1;
    samples.drawn.push_back(row < rows ? kHostile : kHarmless);
    samples.next_drafts.push_back((row + 1) % rows == 0 ? -1 : letter);
  }
  std::vector<uint32_t> masks(2 * rows * kSmallVocab / 32);
  size_t steps = 0;
  for (; std::cmp_less(steps, kMaxNew) && open.open() > 0; ++steps) {
    open.write_masks(samples, kSmallVocab / 32, masks);
    open.on_results(samples, results);
  }
  EXPECT_EQ(steps, kMaxNew / rows);
  ASSERT_EQ(ended.completions.size(), 2u);
  const Completion &hostile = ended.completions[0], &harmless = ended.completions[1];
  EXPECT_EQ(hostile.sample, kHostile);
  EXPECT_EQ(hostile.reason, FinishReason::kError);
  EXPECT_NE(hostile.error.find("places for one place of the text, expected at most 4096"), std::string::npos)
      << hostile.error;
  EXPECT_EQ(hostile.token_ids.size(), 1365u);
  EXPECT_EQ(harmless.reason, FinishReason::kLength);
  EXPECT_EQ(harmless.token_ids, std::vector<int32_t>(kMaxNew, letter));
}

}  // namespace
}  // namespace lfm2::test
