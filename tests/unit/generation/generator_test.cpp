// Generation over threads: transformers' greedy texts, and the bits of the full forward, however the sequences are cut
// into stages, steps, chunks and pages.
#include "stage/generation/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "stage/io/inputs/input_file.h"
#include "stage/shards/shard_reader.h"
#include "support/generation_run.h"
#include "support/golden.h"
#include "support/loaded_stage.h"
#include "support/local_channel.h"
#include "support/local_control_link.h"
#include "support/local_watchdogs.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

Samples golden_prompts(const std::string& golden_case) {
  return read_samples(golden_dir() / golden_case / "golden.h5", {1 << 20, 1 << 20, 0});
}

TEST(GeneratorTimesTest, AreToldToTheSourceOfRequests) {
  const Samples prompts = golden_prompts("tiny-moe");
  for (const int64_t stages : {1, 4})
    generate("tiny-moe", prompts, {.stages = stages, .slots = 2, .max_new = 20, .times_interval = 1e-6});
}

class GeneratorTest : public testing::TestWithParam<std::string> {};

TEST_P(GeneratorTest, GreedyIsTransformersGreedy) {
  const Samples prompts = golden_prompts(GetParam());
  const Array greedy = read_array(golden_dir() / GetParam() / "golden.h5", "greedy");
  const int64_t length = prompts.offsets[1], whole = greedy.dim(1);
  for (const int64_t stages : {1, 2, 4})
    for (const int64_t page : {1, 16, 256})
      for (const int64_t slots : {1, 3, 64}) {
        SCOPED_TRACE(testing::Message() << stages << " stages, pages of " << page << ", " << slots << " at a time");
        const auto found = generate(GetParam(), prompts,
                                    {.stages = stages,
                                     .slots = slots,
                                     .page_size = page,
                                     .prompt_tokens = slots == 3 ? 5 : 64,
                                     .max_new = whole - length});
        for (int64_t sample = 0; sample < prompts.count(); ++sample) {
          const auto first = greedy.values.begin() + sample * whole + length;
          const std::vector<int32_t>& own = found.at(sample).token_ids;
          EXPECT_TRUE(std::equal(first, first + (whole - length), own.begin(), own.end())) << sample;
          EXPECT_EQ(found.at(sample).reason, FinishReason::kLength);
        }
      }
}

TEST_P(GeneratorTest, GreedyWithRepetitionPenaltyIsThatOfTransformers) {
  const Samples prompts = golden_prompts(GetParam());
  const Json document = Json::parse(std::ifstream(golden_dir() / "penalties.json"));
  int64_t checked = 0;
  for (const Json& one : document["cases"]) {
    if (one["case"] != GetParam()) continue;
    const auto expected = one["tokens"].get<std::vector<std::vector<int32_t>>>();
    const auto penalty = one["penalty"].get<float>();
    ASSERT_EQ(static_cast<int64_t>(expected.size()), prompts.count());
    for (const int64_t stages : {1, 3}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, penalty " << penalty);
      const auto found = generate(GetParam(), prompts,
                                  {.stages = stages,
                                   .slots = 3,
                                   .prompt_tokens = stages == 3 ? 5 : 64,
                                   .max_new = static_cast<int64_t>(expected[0].size()),
                                   .rule = {.repetition_penalty = penalty}});
      for (int64_t sample = 0; sample < prompts.count(); ++sample)
        EXPECT_EQ(found.at(sample).token_ids, expected[static_cast<size_t>(sample)]) << "sample " << sample;
    }
    ++checked;
  }
  EXPECT_EQ(checked, 2);
}

// The log-probability of every token is the one that scoring the whole text gives: the same bits.
void expect_bits_of_full_forward(const std::string& golden_case, std::optional<DType> cache) {
  const Samples prompts = golden_prompts(golden_case);
  const GenerationSettings settings{
      .stages = 2, .slots = 3, .page_size = 4, .prompt_tokens = 7, .max_new = 9, .top_k = 3, .cache = cache};
  const auto found = generate(golden_case, prompts, settings);
  for (int64_t sample = 0; sample < std::min<int64_t>(3, prompts.count()); ++sample) {
    Samples text{.ids = {}, .offsets = {0}};
    const auto at = static_cast<size_t>(sample);
    text.ids = TokenIds(prompts.ids.begin() + prompts.offsets[at], prompts.ids.begin() + prompts.offsets[at + 1]);
    const Completion& completion = found.at(sample);
    for (size_t token = 0; token < completion.token_ids.size(); ++token) {
      // The full forward over all that is known so far, as one prompt.
      text.offsets = {0, static_cast<int64_t>(text.ids.size())};
      const auto whole =
          generate(golden_case, text, {.slots = 1, .prompt_tokens = 4096, .max_new = 1, .top_k = 3, .cache = cache});
      EXPECT_EQ(whole.at(0).token_ids[0], completion.token_ids[token]);
      EXPECT_EQ(whole.at(0).log_probs[0], completion.log_probs[token]) << "sample " << sample << ", token " << token;
      EXPECT_TRUE(std::equal(whole.at(0).top_log_probs.begin(), whole.at(0).top_log_probs.end(),
                             completion.top_log_probs.begin() + static_cast<std::ptrdiff_t>(3 * token)));
      text.ids.push_back(completion.token_ids[token]);
    }
  }
}

TEST_P(GeneratorTest, CachedStepsHaveTheBitsOfTheFullForward) { expect_bits_of_full_forward(GetParam(), {}); }

TEST_P(GeneratorTest, CachedStepsInFp8HaveTheBitsOfTheFullForward) {
  expect_bits_of_full_forward(GetParam(), DType::kF8);
}

// After the last attention layer only the tails of prompts continue, on whichever stage that is. With the prefix cache,
// all tokens do.
TEST_P(GeneratorTest, TailsOfPromptsHaveTheBitsOfWholePrompts) {
  const ModelConfig config = ShardSet::open(golden_shards(GetParam(), 4)).config();
  const Samples prompts = ragged_prompts(config.vocab);
  for (const int64_t prompt_tokens : {3, 6, 11, 64}) {
    GenerationSettings settings{
        .slots = 5, .prompt_tokens = prompt_tokens, .max_new = 4, .top_k = 2, .keeps_prefixes = true};
    const auto whole = generate(GetParam(), prompts, settings);
    settings.keeps_prefixes = false;
    for (int64_t stages = 1; stages <= std::min<int64_t>(config.layers, 8); ++stages) {
      SCOPED_TRACE(testing::Message() << stages << " stages, " << prompt_tokens << " tokens of prompts in a step");
      settings.stages = stages;
      expect_same(generate(GetParam(), prompts, settings), whole);
    }
    settings.stages = 2;
    const int64_t blocks = kBlocksOfLayer * config.layers, last_mixer = kBlocksOfLayer * last_attention_layer(config);
    for (const int64_t block : {int64_t{1}, last_mixer, last_mixer + 1, last_mixer + 2, blocks - 1}) {
      if (block < 1 || block >= blocks) continue;
      SCOPED_TRACE(testing::Message() << "cut at block " << block);
      settings.cut = {layers_of_blocks(0, block), layers_of_blocks(block, blocks)};
      expect_same(generate(GetParam(), prompts, settings), whole);
    }
    settings.cut.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GeneratorTest, testing::ValuesIn(kGoldenCases), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(LostStageTest, AStageThatNeverHearsEndsWithItsName) {
  LoadedStage loaded("tiny-moe", {4, 4}, DType::kF32);
  LocalLink silent;
  LocalChannel channel(&silent, nullptr);
  LocalControlHub hub(2);
  LocalControlLink control(hub, 1);
  const GenerationPlan plan{.longest = 8,
                            .limits = {.steps_in_flight = 2,
                                       .max_sequences = 1,
                                       .prompt_tokens = 8,
                                       .caches = {.slots = 1, .pages = 1, .page_size = 16}}};
  LocalBoard board(2);
  Watchdog silent_one = board.watchdog(0, 0.4), watchdog = board.watchdog(1, 0.4);
  Generator generator({loaded.backend, loaded.pieces, &channel, &control, 1, 2, watchdog}, plan, DType::kF32);
  try {
    generator.run(nullptr, {}, [](int64_t) {});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kLost);
    EXPECT_NE(std::string(error.what())
                  .find("rank 0 starts and does not come out of it; rank 1 waits for rank 0 to announce step 0"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lfm2::test
