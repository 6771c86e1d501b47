// A sample's completion has the same bits alone and among others, however the sequences are cut into stages, steps,
// chunks and pages, with or without prefixes that were computed before.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "grammar/constraint_cache.h"
#include "stage/generation/test_drafter.h"
#include "stage/io/inputs/input_file.h"
#include "stage/shards/shard_reader.h"
#include "support/generation_run.h"
#include "support/shards.h"
#include "support/weights_support.h"
#include "text/tokenizer.h"

namespace lfm2::test {
namespace {

// Drawn texts depend on the seed and the sample alone, in bf16 too, and with sequences that end early and more of them
// than slots.
TEST(CompanyTest, ASampleDependsOnItselfAlone) {
  const Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    GenerationSettings settings{.slots = 1,
                                .max_new = 20,
                                .rule = {.temperature = 1.5f, .top_k = 20, .top_p = 0.9f, .seed = 5},
                                .eos_tokens = {3, 9, 17},
                                .compute = compute};
    const auto alone = generate("tiny-moe", prompts, settings);
    EXPECT_TRUE(std::any_of(alone.begin(), alone.end(),
                            [](const auto& one) { return one.second.reason == FinishReason::kStop; }));
    EXPECT_TRUE(std::any_of(alone.begin(), alone.end(),
                            [](const auto& one) { return one.second.reason == FinishReason::kLength; }));
    for (const int64_t stages : {1, 3})
      for (const int64_t slots : {2, 4, 9})
        for (const int64_t chunk : {1, 4, 100}) {
          settings.stages = stages;
          settings.slots = slots;
          settings.prompt_tokens = chunk;
          settings.page_size = slots == 4 ? 1 : 8;
          const auto found = generate("tiny-moe", prompts, settings);
          expect_same(found, alone);
        }
    settings.rule.seed = 6;
    const auto other = generate("tiny-moe", prompts, settings);
    EXPECT_TRUE(std::any_of(alone.begin(), alone.end(),
                            [&](const auto& one) { return other.at(one.first).token_ids != one.second.token_ids; }));
  }
}

// Samples with rules of all kinds side by side: the same bits alone, among others, however they are cut into stages,
// chunks and pages, and where some give their pages back and are fed again.
TEST(CompanyTest, AdjustedDrawsHaveTheSameBitsInAnyCompany) {
  Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  for (int64_t sample = 0; sample < prompts.count(); ++sample) {
    SampleRules rules{.sampling = {.temperature = sample % 4 == 3 ? 0.0f : 1.5f, .top_p = 0.95f, .min_p = 0.02f}};
    if (sample % 3 != 0) rules.sampling.repetition_penalty = 1.3f;
    if (sample % 3 == 2) rules.sampling.presence_penalty = rules.sampling.frequency_penalty = 0.5f;
    if (sample % 2 == 0) rules.logit_bias = {{static_cast<int32_t>(sample), 4.0f}, {20, -100.0f}};
    if (sample > 4) rules.sampling.min_tokens = 10;
    prompts.rules.push_back(rules);
  }
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    GenerationSettings settings{
        .slots = 1, .page_size = 4, .max_new = 20, .eos_tokens = {3, 9, 17}, .top_k = 2, .compute = compute};
    const auto alone = generate("tiny-moe", prompts, settings);
    for (const auto& [sample, completion] : alone) {
      if (sample > 4) {
        EXPECT_GT(completion.token_ids.size(), 9u);
      }
      if (sample % 2 == 0) {
        EXPECT_EQ(std::count(completion.token_ids.begin(), completion.token_ids.end(), 20), 0);
      }
    }
    for (const int64_t stages : {1, 3})
      for (const int64_t slots : {4, 9})
        for (const int64_t pages : {0, 18}) {
          if (slots == 4 && pages > 0) continue;  // enough for four
          settings.stages = stages;
          settings.slots = slots;
          settings.prompt_tokens = slots == 4 ? 3 : 64;
          settings.pages = pages;
          int64_t preemptions = 0;
          const auto found = generate("tiny-moe", prompts, settings, &preemptions);
          EXPECT_EQ(preemptions > 0, pages > 0);
          expect_same(found, alone);
        }
  }
}

// Prompts that begin alike, some of them as a whole prompt before them with a part of its text: what of them is taken
// from the prefix cache gives the bits of computing it.
TEST(CompanyTest, PrefixesChangeNothing) {
  for (const auto& [model, compute, penalty] :
       std::initializer_list<std::tuple<std::string, DType, float>>{{"tiny-moe", DType::kF32, 1.0f},
                                                                    {"tiny-moe", DType::kBf16, 1.0f},
                                                                    {"tiny-moe", DType::kF32, 1.5f},
                                                                    {"tiny-moe", DType::kBf16, 1.5f},
                                                                    {"tiny-lfm3", DType::kF32, 1.0f}}) {
    const int64_t vocab = ShardSet::open(golden_shards(model, 4)).config().vocab;
    GenerationSettings settings{.page_size = 4,
                                .max_new = 20,
                                .rule = {.temperature = 1.2f, .seed = 5, .repetition_penalty = penalty},
                                .top_k = 2,
                                .compute = compute};
    Samples prompts{.ids = {}, .offsets = {0}};
    const Samples words = random_samples(1, 64, 3, vocab);
    for (int64_t sample = 0; sample < 24; ++sample) {
      for (int64_t i = 0; i < 8 + sample % 3 * 13; ++i) prompts.ids.push_back(words.ids[i]);
      for (int64_t i = 0; i < sample % 5; ++i) prompts.ids.push_back(words.ids[63 - sample]);
      prompts.offsets.push_back(std::ssize(prompts.ids));
    }
    const auto computed = generate(model, prompts, settings);
    for (const int64_t stages : {1, 3})
      for (const int64_t slots : {1, 5})
        for (const int64_t pages : {15, 30}) {  // the longest sequence alone takes 15
          SCOPED_TRACE(testing::Message() << stages << " stages, " << slots << " at a time, " << pages << " pages");
          settings.stages = stages;
          settings.slots = slots;
          settings.pages = pages;
          settings.prompt_tokens = slots == 1 ? 7 : 64;
          settings.keeps_prefixes = true;
          int64_t preemptions = 0, cached = 0;
          const auto found = generate(model, prompts, settings, &preemptions, &cached);
          EXPECT_GT(cached, 100);
          expect_same(found, computed);
        }
  }
}

void expect_same_with_few_pages(const std::string& golden_case, const Samples& prompts, GenerationSettings settings) {
  const auto roomy = generate(golden_case, prompts, settings);
  for (const int64_t stages : {1, 3})
    for (const int64_t pages : {15, 18, 25}) {  // the longest sequence alone takes 15
      SCOPED_TRACE(testing::Message() << stages << " stages, " << pages << " pages");
      settings.stages = stages;
      settings.pages = pages;
      int64_t preemptions = 0;
      const auto found = generate(golden_case, prompts, settings, &preemptions);
      EXPECT_GT(preemptions, 0);
      expect_same(found, roomy);
    }
}

// With fewer pages than the sequences come to need, some give theirs back and are computed again.
TEST(CompanyTest, ASequenceThatGaveItsPagesBackHasTheSameBits) {
  for (const auto& [model, compute] : std::initializer_list<std::pair<std::string, DType>>{
           {"tiny-moe", DType::kF32}, {"tiny-moe", DType::kBf16}, {"tiny-lfm3", DType::kF32}}) {
    const Samples prompts = ragged_prompts(ShardSet::open(golden_shards(model, 4)).config().vocab);
    GenerationSettings settings{.slots = 9,
                                .page_size = 4,
                                .max_new = 20,
                                .rule = {.temperature = 1.5f, .top_k = 20, .top_p = 0.9f, .seed = 5},
                                .eos_tokens = {3, 9},
                                .top_k = 2,
                                .compute = compute};
    expect_same_with_few_pages(model, prompts, settings);
  }
}

// Layers with a window of 8 positions hold the pages of the last ones alone, and the bits are those of all pages.
TEST(CompanyTest, PagesBehindAWindowAreGivenBack) {
  const int64_t vocab = ShardSet::open(golden_shards("tiny-lfm3", 4)).config().vocab;
  const Samples prompts = random_samples(3, 150, 8, vocab);
  GenerationSettings settings{
      .slots = 3, .max_new = 40, .rule = {.temperature = 0.3f, .seed = 5}, .top_k = 2, .gives_back = false};
  const auto kept = generate("tiny-lfm3", prompts, settings);
  settings.gives_back = true;
  int64_t most = 0;
  settings.most_window_pages = &most;
  SchedulerCounts counts;
  settings.counts = &counts;
  const DrafterFactory mostly_right = [&](const Request& request, int64_t prompt) -> std::unique_ptr<Drafter> {
    return std::make_unique<TestDrafter>(TestDrafts{.share = 0.7, .vocab = vocab}, kept.at(request.sample).token_ids,
                                         prompt, static_cast<uint64_t>(request.sample));
  };
  for (const int64_t stages : {1, 4})
    for (const int64_t page : {1, 3, 8, 16})
      for (const int64_t drafts : {0, 3}) {
        SCOPED_TRACE(testing::Message() << stages << " stages, pages of " << page << ", " << drafts << " drafts");
        settings.stages = stages;
        settings.page_size = page;
        settings.prompt_tokens = page == 3 ? 5 : 32;
        settings.max_drafts = drafts;
        settings.streams_drafts = stages > 1;
        settings.drafters = drafts > 0 ? mostly_right : DrafterFactory();
        expect_same(generate("tiny-lfm3", prompts, settings), kept);
        EXPECT_EQ(counts.draft_tokens > counts.accepted_tokens(), drafts > 0);
        EXPECT_GT(most, 0);
        EXPECT_LE(most, 3 * (pages_for(7 + drafts, page) + 1) + settings.prompt_tokens / page + 1);
        EXPECT_LT(most, 3 * pages_for(189, page) / 2);
      }
}

// The grammar's state continues with the text, whose keys and values are computed again.
TEST(CompanyTest, AConstrainedSequenceThatGaveItsPagesBackHasTheSameBits) {
  const Tokenizer tokenizer =
      Tokenizer::parse(read_bytes(std::filesystem::path(LFM2_GOLDEN_DIR) / "kjv-moe/tokenizer.json"), "tokenizer.json");
  const int64_t vocab = ShardSet::open(golden_shards("kjv-moe", 4)).config().vocab;
  grammar::ConstraintCache constraints(tokenizer, vocab);
  GenerationSettings settings{.slots = 9, .page_size = 4, .max_new = 20, .rule = {.temperature = 1.5f, .seed = 5}};
  settings.constraints = &constraints;
  Samples prompts = ragged_prompts(vocab);
  for (int64_t sample = 0; sample < prompts.count(); ++sample)
    prompts.rules.push_back({.constraint = R"({"regex": "[a-f]{10}[0-9 ]{12,40}[.]"})"});
  for (const auto& [sample, completion] : generate("kjv-moe", prompts, settings))
    EXPECT_EQ(tokenizer.decode(completion.token_ids, true).find_first_not_of("abcdef0123456789 ."), std::string::npos)
        << sample;
  expect_same_with_few_pages("kjv-moe", prompts, settings);
}

}  // namespace
}  // namespace lfm2::test
