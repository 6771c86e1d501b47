// Generations with a DSpark drafter: its rounds are those of the goldens, and its drafts change no bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/checked_file.h"
#include "base/json/json.h"
#include "stage/shards/shard_reader.h"
#include "support/generation_run.h"
#include "support/golden.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

using Completions = std::map<int64_t, Completion>;

// Counts of the rounds with drafts in rounds.json.
struct Rounds {
  Samples prompts{.ids = {}, .offsets = {0}};
  std::vector<std::vector<int32_t>> texts;
  int64_t rounds = 0, drafts = 0;
  std::vector<int64_t> accepted;
};

Rounds rounds_of(const std::string& golden_case, int64_t block) {
  const std::filesystem::path file = golden_dir() / "dspark" / golden_case / "rounds.json";
  Rounds all;
  all.accepted.resize(static_cast<size_t>(block));
  for (const Json& run : parse_json(read_text_file(file, 1 << 20), file.string())) {
    const auto prompt = run["prompt"].get<std::vector<int32_t>>(), text = run["text"].get<std::vector<int32_t>>();
    all.prompts.ids.append(prompt);
    all.prompts.offsets.push_back(static_cast<int64_t>(all.prompts.ids.size()));
    all.texts.emplace_back(text.begin() + std::ssize(prompt), text.end());
    for (const Json& round : run["rounds"]) {
      if (round["drafts"].empty()) continue;
      ++all.rounds;
      all.drafts += std::ssize(round["drafts"]);
      for (size_t place = 0; place < round["accepted"].get<size_t>(); ++place) ++all.accepted[place];
    }
  }
  return all;
}

struct DsparkCase {
  const char* name;
  int64_t block;
};
constexpr DsparkCase kCases[] = {{"tiny-dense", 4}, {"kjv-moe", 7}};

// Every prompt alone and all together; in chunks, from the prefix cache, and fed again after preemptions.
TEST(DsparkGenerationTest, RoundsAreThoseOfTheGoldens) {
  for (const auto& [name, block] : kCases) {
    const Rounds golden = rounds_of(name, block);
    int turn = 0;
    for (const int64_t stages : {1, 2, 3, 4}) {
      ++turn;
      SCOPED_TRACE(testing::Message() << name << ", " << stages << " stages");
      SchedulerCounts counts;
      GenerationSettings settings{.stages = stages,
                                  .slots = turn == 1 ? 1 : 4,
                                  .page_size = turn == 2 ? 16 : 4,
                                  .prompt_tokens = turn % 2 == 0 ? 3 : 64,
                                  .max_new = 24,
                                  .keeps_prefixes = turn == 3,
                                  .max_drafts = block,
                                  .dspark = name,
                                  .counts = &counts};
      int64_t preemptions = 0;
      if (turn == 4) settings.pages = 18;
      const Completions found = generate(name, golden.prompts, settings, &preemptions);
      for (size_t i = 0; i < golden.texts.size(); ++i)
        EXPECT_EQ(found.at(static_cast<int64_t>(i)).token_ids, golden.texts[i]);
      if (preemptions > 0) continue;  // a sequence that comes back draws a token without drafts
      EXPECT_EQ(counts.draft_rounds, golden.rounds);
      EXPECT_EQ(counts.draft_tokens, golden.drafts);
      EXPECT_EQ(counts.accepted, golden.accepted);
    }
  }
}

std::string_view letter_of_token(int32_t token) {
  return std::string_view("abc").substr(static_cast<size_t>(token % 3), 1);
}

TEST(DsparkGenerationTest, DraftsChangeNoBits) {
  for (const auto& [name, block] : kCases) {
    Samples prompts = ragged_prompts(ShardSet::open(golden_shards(name, 4)).config().vocab);
    for (int64_t sample = 0; sample < prompts.count(); ++sample) {
      SampleRules rules{.sampling = {.temperature = sample % 2 == 0 ? 0.0f : 0.7f}};
      if (sample % 4 == 1) rules.sampling.repetition_penalty = 1.05f;
      if (sample % 4 == 2) rules.sampling.presence_penalty = rules.sampling.frequency_penalty = 0.5f;
      if (sample % 3 == 1) rules.sampling.stop = {"abca", "ccb"};
      if (sample % 6 == 5) rules.choices = 2;
      if (sample == 4) rules.draft = false;
      prompts.rules.push_back(rules);
    }
    for (const DType compute : {DType::kF32, DType::kBf16}) {
      GenerationSettings settings{.slots = 4,
                                  .page_size = 4,
                                  .max_new = 24,
                                  .eos_tokens = {3, 9, 17},
                                  .top_k = 2,
                                  .compute = compute,
                                  .token_text = letter_of_token};
      const Completions plain = generate(name, prompts, settings);
      settings.dspark = name;
      int turn = 0;
      int64_t preemptions = 0;
      for (const int64_t drafts : {block, int64_t{1}, int64_t{2}, int64_t{0}}) {  // 0: chosen by clocks
        ++turn;
        settings.max_drafts = drafts > 0 ? drafts : block;
        settings.fixed_drafts = drafts > 0;
        settings.stages = 1 + turn % 4;
        settings.slots = turn % 3 == 0 ? 1 : turn % 2 == 0 ? 9 : 4;
        settings.prompt_tokens = turn % 2 == 0 ? 3 : 64;
        settings.pages = turn % 2 == 0 ? 18 : 0;  // few: the longest sequence alone takes 16
        settings.keeps_prefixes = turn % 2 == 1;
        SchedulerCounts counts;
        settings.counts = &counts;
        SCOPED_TRACE(testing::Message() << name << ", " << drafts << " drafts, " << settings.stages << " stages");
        const Completions found = generate(name, prompts, settings, &preemptions);
        expect_same(found, plain);
        for (const auto& [sample, completion] : plain) {
          ASSERT_EQ(found.at(sample).others.size(), completion.others.size());
          for (size_t i = 0; i < completion.others.size(); ++i)
            EXPECT_EQ(found.at(sample).others[i].token_ids, completion.others[i].token_ids);
        }
        EXPECT_EQ(found.at(4).drafts, DraftCounts{});
        EXPECT_TRUE(drafts == 0 || counts.draft_rounds > 20);
      }
    }
  }
}

}  // namespace
}  // namespace lfm2::test
