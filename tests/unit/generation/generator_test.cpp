// Generation over threads: transformers' greedy texts, and the same texts however the sequences are cut into stages,
// steps, chunks and pages, alone and among others.
#include "stage/generation/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "comm/local_channel.h"
#include "comm/local_control_link.h"
#include "stage/generation/sample_requests.h"
#include "stage/io/input_file.h"
#include "support/golden.h"
#include "support/loaded_stage.h"
#include "support/local_watchdogs.h"

namespace lfm2::test {
namespace {

class Collected : public CompletionConsumer {
 public:
  void take(const Completion& completion) override {
    EXPECT_TRUE(all.emplace(completion.sample, completion).second) << "a sample twice";
  }
  std::map<int64_t, Completion> all;
};

struct Settings {
  int64_t stages = 1, slots = 4, page = 16, prompt_tokens = 64, max_new = 12;
  SamplingRule rule{};
  std::vector<int32_t> eos_tokens{};
  int64_t top_k = 0;
  DType compute = DType::kF32;
  int64_t pages = 0;  // 0: as many as all slots can fill
};

std::map<int64_t, Completion> generate(const std::string& golden_case, const Samples& samples, const Settings& settings,
                                       int64_t* preemptions = nullptr) {
  const ModelConfig config = ShardSet::open(golden_shards(golden_case, 4)).config();
  const std::vector<LayerRange> ranges = equal_partition(config.layers, settings.stages);
  GenerationPlan plan{.top_k = settings.top_k, .limits = {}};
  for (int64_t i = 0; i < samples.count(); ++i)
    plan.longest =
        std::max(plan.longest, cached_positions(samples.offsets[i + 1] - samples.offsets[i], settings.max_new));
  const int64_t slots = std::min(settings.slots, samples.count());
  plan.limits = {
      .steps_in_flight = settings.stages,
      .max_sequences = (slots + settings.stages - 1) / settings.stages,
      .prompt_tokens = settings.prompt_tokens,
      .caches = {.slots = slots,
                 .pages = settings.pages > 0 ? settings.pages : slots * pages_for(plan.longest, settings.page),
                 .page = settings.page}};
  std::vector<LocalLink> links(ranges.size());
  LocalControlHub hub(ranges.size());
  Collected collected;
  LocalBoard board(ranges.size());
  std::vector<std::thread> ranks;
  std::vector<std::exception_ptr> errors(ranges.size());
  for (size_t rank = 0; rank < ranges.size(); ++rank)
    ranks.emplace_back([&, rank] {
      try {
        LoadedStage loaded(golden_case, ranges[rank], settings.compute);
        LocalChannel channel(rank == 0 ? nullptr : &links[rank - 1],
                             rank + 1 == ranges.size() ? nullptr : &links[rank]);
        LocalControlLink control(hub, rank);
        Watchdog watchdog = board.watchdog(rank);
        Generator generator({.backend = loaded.backend,
                             .stage = loaded.stage,
                             .channel = &channel,
                             .control = &control,
                             .index = static_cast<int64_t>(rank),
                             .stages = settings.stages,
                             .watchdog = watchdog},
                            plan, settings.compute);
        SampleRequests requests(
            samples, {0, samples.count()},
            Request{.max_new = settings.max_new, .rule = settings.rule, .eos_tokens = settings.eos_tokens},
            config.max_positions);
        generator.run(rank == 0 ? &requests : nullptr, {&collected}, [](int64_t) {});
        EXPECT_EQ(generator.used_slots(), 0);
        EXPECT_EQ(generator.free_pages(), plan.limits.caches.pages);
        if (rank == 0 && preemptions != nullptr) *preemptions = generator.counts().preemptions;
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  EXPECT_EQ(static_cast<int64_t>(collected.all.size()), samples.count());
  return collected.all;
}

Samples golden_prompts(const std::string& golden_case) {
  return read_samples(golden_dir() / golden_case / "golden.h5", {1 << 20, 1 << 20, 0});
}

std::vector<int32_t> tokens_of(const std::map<int64_t, Completion>& completions, int64_t sample) {
  return completions.at(sample).token_ids;
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
                                     .page = page,
                                     .prompt_tokens = slots == 3 ? 5 : 64,
                                     .max_new = whole - length});
        for (int64_t sample = 0; sample < prompts.count(); ++sample) {
          const auto first = greedy.values.begin() + sample * whole + length;
          EXPECT_TRUE(std::equal(first, first + (whole - length), tokens_of(found, sample).begin())) << sample;
          EXPECT_EQ(found.at(sample).reason, FinishReason::kLength);
        }
      }
}

// The log-probability of every token is the one that scoring the whole text gives: the same bits.
TEST_P(GeneratorTest, CachedStepsHaveTheBitsOfTheFullForward) {
  const Samples prompts = golden_prompts(GetParam());
  const Settings settings{.stages = 2, .slots = 3, .page = 4, .prompt_tokens = 7, .max_new = 9, .top_k = 3};
  const auto found = generate(GetParam(), prompts, settings);
  for (int64_t sample = 0; sample < std::min<int64_t>(3, prompts.count()); ++sample) {
    Samples text{.ids = {}, .offsets = {0}};
    const auto at = static_cast<size_t>(sample);
    text.ids = TokenIds(prompts.ids.begin() + prompts.offsets[at], prompts.ids.begin() + prompts.offsets[at + 1]);
    const Completion& completion = found.at(sample);
    for (size_t token = 0; token < completion.token_ids.size(); ++token) {
      // The full forward over all that is known so far, as one prompt.
      text.offsets = {0, static_cast<int64_t>(text.ids.size())};
      const auto whole = generate(GetParam(), text, {.slots = 1, .prompt_tokens = 4096, .max_new = 1, .top_k = 3});
      EXPECT_EQ(whole.at(0).token_ids[0], completion.token_ids[token]);
      EXPECT_EQ(whole.at(0).log_probs[0], completion.log_probs[token]) << "sample " << sample << ", token " << token;
      EXPECT_TRUE(std::equal(whole.at(0).top_log_probs.begin(), whole.at(0).top_log_probs.end(),
                             completion.top_log_probs.begin() + static_cast<std::ptrdiff_t>(3 * token)));
      text.ids.push_back(completion.token_ids[token]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GeneratorTest, testing::ValuesIn(kGoldenCases), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

Samples ragged_prompts(int64_t vocab) {
  Samples all{.ids = {}, .offsets = {0}};
  for (const int64_t length : {1, 7, 2, 40, 1, 3, 12, 5, 1}) {
    const Samples one = random_samples(1, length, static_cast<uint64_t>(length), vocab);
    all.ids.append(one.ids);
    all.offsets.push_back(static_cast<int64_t>(all.ids.size()));
  }
  return all;
}

// Drawn texts depend on the seed and the sample alone, in bf16 too, and with sequences that end early and more of them
// than slots.
TEST(GenerationTest, ASampleDependsOnItselfAlone) {
  const Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    Settings settings{.slots = 1,
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
          settings.page = slots == 4 ? 1 : 8;
          const auto found = generate("tiny-moe", prompts, settings);
          for (const auto& [sample, completion] : alone) {
            EXPECT_EQ(found.at(sample).token_ids, completion.token_ids) << "sample " << sample;
            EXPECT_EQ(found.at(sample).log_probs, completion.log_probs);
            EXPECT_EQ(found.at(sample).reason, completion.reason);
          }
        }
    settings.rule.seed = 6;
    const auto other = generate("tiny-moe", prompts, settings);
    EXPECT_TRUE(std::any_of(alone.begin(), alone.end(),
                            [&](const auto& one) { return other.at(one.first).token_ids != one.second.token_ids; }));
  }
}

// With fewer pages than the sequences come to need, some give theirs back and are computed again.
TEST(GenerationTest, ASequenceThatGaveItsPagesBackHasTheSameBits) {
  const Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    Settings settings{.slots = 9,
                      .page = 4,
                      .max_new = 20,
                      .rule = {.temperature = 1.5f, .top_k = 20, .top_p = 0.9f, .seed = 5},
                      .eos_tokens = {3, 9},
                      .top_k = 2,
                      .compute = compute};
    const auto roomy = generate("tiny-moe", prompts, settings);
    for (const int64_t stages : {1, 3})
      for (const int64_t pages : {15, 18, 25}) {  // the longest sequence alone takes 15
        SCOPED_TRACE(testing::Message() << stages << " stages, " << pages << " pages");
        settings.stages = stages;
        settings.pages = pages;
        int64_t preemptions = 0;
        const auto found = generate("tiny-moe", prompts, settings, &preemptions);
        EXPECT_GT(preemptions, 0);
        for (const auto& [sample, completion] : roomy) {
          EXPECT_EQ(found.at(sample).token_ids, completion.token_ids) << "sample " << sample;
          EXPECT_EQ(found.at(sample).log_probs, completion.log_probs);
          EXPECT_EQ(found.at(sample).top_log_probs, completion.top_log_probs);
          EXPECT_EQ(found.at(sample).reason, completion.reason);
        }
      }
  }
}

TEST(GenerationTest, AStageThatNeverHearsEndsWithItsName) {
  LoadedStage loaded("tiny-moe", {4, 4}, DType::kF32);
  LocalLink silent;
  LocalChannel channel(&silent, nullptr);
  LocalControlHub hub(2);
  LocalControlLink control(hub, 1);
  const GenerationPlan plan{.longest = 8,
                            .limits = {.steps_in_flight = 2,
                                       .max_sequences = 1,
                                       .prompt_tokens = 8,
                                       .caches = {.slots = 1, .pages = 1, .page = 16}}};
  LocalBoard board(2);
  Watchdog silent_one = board.watchdog(0, 0.4), watchdog = board.watchdog(1, 0.4);
  Generator generator({loaded.backend, loaded.stage, &channel, &control, 1, 2, watchdog}, plan, DType::kF32);
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
