// A constrained text that passes a limit of its grammar ends alone, with an error, and the texts beside it continue.
#include "stage/generation/open_completions.h"

#include <gtest/gtest.h>

#include <string>
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

TEST(OpenCompletionsTest, ATextBeyondALimitEndsAlone) {
  const int32_t letter = encode(small_tokenizer(), "a").at(0);
  grammar::ConstraintCache constraints(small_tokenizer(), kSmallVocab);
  Ended ended;
  OpenCompletions open({&ended}, {}, false, &constraints);
  constexpr int32_t kMaxNew = 9000;
  open.apply(admit_both(kMaxNew));
  std::vector<std::byte> memory(4096);
  StepResults results(memory.data(), {.draws = 2});
  for (int row = 0; row < 2; ++row) {
    results.drawn.ids.as<int32_t>()[row] = letter;
    results.drawn.log_probs.as<float>()[row] = -1;
  }
  const StepSamples samples{.drawn = {kHostile, kHarmless}, .scored = {}, .hidden = {}};
  std::vector<uint32_t> masks(2 * kSmallVocab / 32);
  for (int32_t token = 0; token < kMaxNew; ++token) {
    open.write_masks(samples.drawn, kSmallVocab / 32, masks);
    open.on_results(samples, results);
  }
  ASSERT_EQ(ended.completions.size(), 2u);
  const Completion &hostile = ended.completions[0], &harmless = ended.completions[1];
  EXPECT_EQ(hostile.sample, kHostile);
  EXPECT_EQ(hostile.reason, FinishReason::kError);
  EXPECT_NE(hostile.error.find("places for one place of the text, expected at most 4096"), std::string::npos)
      << hostile.error;
  EXPECT_LT(hostile.token_ids.size(), size_t{kMaxNew});
  EXPECT_EQ(harmless.reason, FinishReason::kLength);
  EXPECT_EQ(harmless.token_ids, std::vector<int32_t>(kMaxNew, letter));
}

}  // namespace
}  // namespace lfm2::test
