// Drafts change no bit of a completion, whoever makes them, right or wrong, however sequences are cut into stages,
// steps, chunks and pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "grammar/constraint_cache.h"
#include "stage/generation/ngram_drafter.h"
#include "stage/generation/test_drafter.h"
#include "stage/io/inputs/input_file.h"
#include "stage/shards/shard_reader.h"
#include "support/generation_run.h"
#include "support/shards.h"
#include "support/weights_support.h"
#include "text/tokenizer.h"

namespace lfm2::test {
namespace {

using Completions = std::map<int64_t, Completion>;

int64_t moe_vocab() { return ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab; }

// Texts of tokens for stop texts: one of three letters for each.
std::string_view letter_of(int32_t token) { return std::string_view("abc").substr(static_cast<size_t>(token % 3), 1); }

// Prompts with rules of all kinds; some texts repeat themselves, some end early.
Samples prompts_with_rules() {
  Samples prompts = ragged_prompts(moe_vocab());
  for (int64_t sample = 0; sample < prompts.count(); ++sample) {
    SampleRules rules{.sampling = {.temperature = sample % 3 == 0 ? 0.0f : sample % 3 == 1 ? 0.4f : 1.5f}};
    if (sample % 4 == 1) rules.sampling.repetition_penalty = 1.05f;
    if (sample % 4 == 2) rules.sampling.presence_penalty = rules.sampling.frequency_penalty = 0.5f;
    if (sample % 4 == 3) rules.sampling.top_p = 0.9f;
    if (sample % 5 == 3) rules.logit_bias = {{static_cast<int32_t>(sample), 4.0f}, {20, -100.0f}};
    if (sample > 4) rules.sampling.min_tokens = 10;
    if (sample % 3 == 1) rules.sampling.stop = {"abc", "cab"};
    if (sample % 6 == 5) rules.choices = 2;
    prompts.rules.push_back(rules);
  }
  return prompts;
}

void expect_equal(const Completions& found, const Completions& plain) {
  expect_same(found, plain);
  for (const auto& [sample, completion] : plain) {
    const Completion& other = found.at(sample);
    EXPECT_EQ(other.top_ids, completion.top_ids);
    EXPECT_EQ(other.text_bytes, completion.text_bytes);
    ASSERT_EQ(other.others.size(), completion.others.size());
    for (size_t i = 0; i < other.others.size(); ++i) {
      EXPECT_EQ(other.others[i].token_ids, completion.others[i].token_ids);
      EXPECT_EQ(other.others[i].log_probs, completion.others[i].log_probs);
    }
  }
}

DrafterFactory oracle(const Completions& plain, TestDrafts drafts) {
  if (drafts.vocab == 0) drafts.vocab = moe_vocab();
  return [&plain, drafts](const Request& request, int64_t prompt) -> std::unique_ptr<Drafter> {
    const bool other = request.choice > 0;
    const Completion& first = plain.at(other ? request.first : request.sample);
    const Completion& own = other ? first.others.at(static_cast<size_t>(request.choice) - 1) : first;
    return std::make_unique<TestDrafter>(drafts, own.token_ids, prompt, static_cast<uint64_t>(request.sample));
  };
}

GenerationSettings settings_of(DType compute) {
  return {.slots = 4,
          .page_size = 4,
          .max_new = 24,
          .eos_tokens = {3, 9, 17},
          .top_k = 2,
          .compute = compute,
          .token_text = letter_of};
}

struct Drafters {
  const char* name;
  DrafterFactory make;
};
std::vector<Drafters> all_drafters(const Completions& plain, int64_t vocab = moe_vocab()) {
  return {{"right", oracle(plain, {.vocab = vocab})},
          {"mostly right", oracle(plain, {.share = 0.7, .vocab = vocab})},
          {"wrong", oracle(plain, {.share = 0, .vocab = vocab})},
          {"late", oracle(plain, {.kind = TestDrafts::Kind::kLate, .vocab = vocab})},
          {"random", oracle(plain, {.kind = TestDrafts::Kind::kRandom, .vocab = vocab})},
          {"n-grams", [](const Request&, int64_t) { return std::make_unique<NgramDrafter>(); }}};
}

TEST(DraftsTest, ChangeNoBits) {
  const Samples prompts = prompts_with_rules();
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    GenerationSettings settings = settings_of(compute);
    const Completions plain = generate("tiny-moe", prompts, settings);
    for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength})
      EXPECT_TRUE(
          std::any_of(plain.begin(), plain.end(), [&](const auto& one) { return one.second.reason == reason; }));
    EXPECT_TRUE(std::any_of(plain.begin(), plain.end(), [](const auto& one) { return one.second.text_bytes; }));
    int64_t accepted = 0, rejected = 0;
    int turn = 0;
    for (const Drafters& drafters : all_drafters(plain))
      for (const int64_t drafts : {1, 2, 4, 9, 0}) {  // 0: chosen by clocks
        // Different stages, slots, chunks and pages in turn.
        ++turn;
        settings.drafters = drafters.make;
        settings.max_drafts = drafts > 0 ? drafts : 9;
        settings.fixed_drafts = drafts > 0;
        settings.streams_drafts = turn % 2 == 0;
        settings.stages = 1 + turn % 3;
        settings.slots = turn % 5 == 0 ? 1 : turn % 2 == 0 ? 9 : 4;
        settings.prompt_tokens = turn % 3 == 0 ? 3 : 64;
        settings.pages = turn % 4 == 1 ? 20 : 0;  // few: the longest sequence alone takes 16
        settings.keeps_prefixes = turn % 2 == 1;
        SchedulerCounts counts;
        settings.counts = &counts;
        SCOPED_TRACE(testing::Message() << drafters.name << ", " << drafts << " drafts, " << settings.stages
                                        << " stages, " << settings.slots << " slots, " << settings.pages << " pages");
        expect_equal(generate("tiny-moe", prompts, settings), plain);
        if (HasFailure()) return;
        const int64_t right = std::reduce(counts.accepted.begin(), counts.accepted.end());
        EXPECT_TRUE(drafts == 0 || counts.draft_rounds > 0);
        accepted += right;
        rejected += counts.draft_tokens - right;
        if (std::string_view(drafters.name) == "wrong") {
          EXPECT_EQ(right, 0);
        }
        if (std::string_view(drafters.name) == "right") {
          EXPECT_EQ(right, counts.draft_tokens);
        }
      }
    EXPECT_GT(accepted, 1000);
    EXPECT_GT(rejected, 1000);
  }
}

// Where pages are few, sequences are preempted between their blocks, and are fed again.
TEST(DraftsTest, FewPagesChangeNoBits) {
  const Samples prompts = prompts_with_rules();
  GenerationSettings settings = settings_of(DType::kF32);
  settings.slots = 9;
  const Completions plain = generate("tiny-moe", prompts, settings);
  settings.pages = 17;
  settings.max_drafts = 5;
  int64_t all = 0;
  for (const Drafters& drafters : all_drafters(plain))
    for (const int64_t stages : {1, 4})
      for (const bool keeps_prefixes : {false, true}) {
        SCOPED_TRACE(testing::Message() << drafters.name << ", " << stages << " stages, prefixes " << keeps_prefixes);
        settings.drafters = drafters.make;
        settings.stages = stages;
        settings.keeps_prefixes = keeps_prefixes;
        int64_t preemptions = 0;
        expect_equal(generate("tiny-moe", prompts, settings, &preemptions), plain);
        all += preemptions;
      }
  EXPECT_GT(all, 20);
}

// With fewer sequences than stages, drafts follow their tokens in steps of their own.
TEST(DraftsTest, StreamedDraftsChangeNoBits) {
  const Samples prompts = prompts_with_rules();
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    GenerationSettings settings = settings_of(compute);
    const Completions plain = generate("tiny-moe", prompts, settings);
    settings.streams_drafts = true;
    settings.max_drafts = 3;
    for (const Drafters& drafters : all_drafters(plain))
      for (const auto& [stages, slots] : {std::pair(2, 1), {3, 1}, {3, 2}, {4, 1}, {4, 3}}) {
        SCOPED_TRACE(testing::Message() << drafters.name << ", " << stages << " stages, " << slots << " slots");
        settings.drafters = drafters.make;
        settings.stages = stages;
        settings.slots = slots;
        settings.keeps_prefixes = stages == 3;
        settings.pages = slots == 3 ? 20 : 0;
        SchedulerCounts counts;
        settings.counts = &counts;
        expect_equal(generate("tiny-moe", prompts, settings), plain);
        if (HasFailure()) return;
        EXPECT_GT(counts.draft_tokens, 0);
      }
  }
}

// With the oracle every block is right, so the numbers of steps and of drafts are known.
TEST(DraftsTest, CountsAreThoseOfTheTexts) {
  const Samples prompts = random_samples(2, 5, 3, moe_vocab());
  GenerationSettings settings{.slots = 1, .max_new = 21};
  const Completions plain = generate("tiny-moe", prompts, settings);
  SchedulerCounts counts;
  settings.counts = &counts;
  settings.max_drafts = 4;
  settings.drafters = oracle(plain, {});
  const Completions found = generate("tiny-moe", prompts, settings);
  expect_equal(found, plain);
  // The prompt draws one token, then four rounds draw five each.
  EXPECT_EQ(counts.draft_rounds, 2 * 4);
  EXPECT_EQ(counts.draft_tokens, 2 * 16);
  EXPECT_EQ(counts.accepted, (std::vector<int64_t>{8, 8, 8, 8}));
  for (const auto& [sample, completion] : found) EXPECT_EQ(completion.drafts, (DraftCounts{16, 16}));
  settings.drafters = oracle(plain, {.share = 0});
  for (const auto& [sample, completion] : generate("tiny-moe", prompts, settings))
    EXPECT_EQ(completion.drafts, (DraftCounts{16 * 4 + 3 + 2 + 1, 0}));
}

// Each row of a block has the mask after its drafts, of which many are not allowed.
TEST(DraftsTest, ConstrainedTextsHaveTheirBits) {
  const Tokenizer tokenizer =
      Tokenizer::parse(read_bytes(std::filesystem::path(LFM2_GOLDEN_DIR) / "kjv-moe/tokenizer.json"), "tokenizer.json");
  const int64_t vocab = ShardSet::open(golden_shards("kjv-moe", 4)).config().vocab;
  grammar::ConstraintCache constraints(tokenizer, vocab);
  GenerationSettings settings{.slots = 9, .page_size = 4, .max_new = 24, .eos_tokens = {2}, .top_k = 2};
  settings.constraints = &constraints;
  Samples prompts = ragged_prompts(vocab);
  for (int64_t sample = 0; sample < prompts.count(); ++sample) {
    SampleRules rules{.constraint = sample % 3 == 0   ? R"({"regex": "[a-f]{10}[0-9 ]{2,40}[.]"})"
                                    : sample % 3 == 1 ? R"({"regex": "(And|The) [a-z ]{1,9}[.]"})"
                                                      : ""};
    rules.sampling.temperature = sample % 2 == 0 ? 0.0f : 1.5f;
    if (sample > 5) rules.sampling.repetition_penalty = 1.1f;
    prompts.rules.push_back(rules);
  }
  const Completions plain = generate("kjv-moe", prompts, settings);
  EXPECT_EQ(plain.at(1).reason, FinishReason::kStop);
  int turn = 0;
  for (const Drafters& drafters : all_drafters(plain, vocab))
    for (const int64_t drafts : {1, 5}) {
      ++turn;
      settings.drafters = drafters.make;
      settings.max_drafts = drafts;
      settings.streams_drafts = turn % 2 == 0;
      settings.stages = 1 + turn % 3;
      settings.slots = turn % 4 == 0 ? 1 : 9;
      settings.pages = turn % 3 == 0 ? 17 : 0;
      SchedulerCounts counts;
      settings.counts = &counts;
      SCOPED_TRACE(testing::Message() << drafters.name << ", " << drafts << " drafts, " << settings.stages
                                      << " stages");
      expect_equal(generate("kjv-moe", prompts, settings), plain);
      if (HasFailure()) return;
      if (std::string_view(drafters.name) == "right") {
        EXPECT_EQ(counts.accepted_tokens(), counts.draft_tokens);
        EXPECT_GT(counts.accepted_tokens(), 60);
      }
    }
}

// A request may go without drafts.
TEST(DraftsTest, ARequestMayGoWithout) {
  Samples prompts = random_samples(3, 5, 3, moe_vocab());
  GenerationSettings settings{.slots = 3, .max_new = 12};
  const Completions plain = generate("tiny-moe", prompts, settings);
  prompts.rules.push_back({.draft = false});
  for (int i = 0; i < 2; ++i) prompts.rules.push_back({});
  settings.max_drafts = 3;
  settings.drafters = oracle(plain, {});
  const Completions found = generate("tiny-moe", prompts, settings);
  expect_equal(found, plain);
  EXPECT_EQ(found.at(0).drafts, DraftCounts{});
  EXPECT_GT(found.at(1).drafts.accepted, 0);
}

}  // namespace
}  // namespace lfm2::test
